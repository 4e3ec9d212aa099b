"""Read records and draw them: one page, no tensor."""

from kernelhead.report.page import summary, write_report

__all__ = ["summary", "write_report"]
