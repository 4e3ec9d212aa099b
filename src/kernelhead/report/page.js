"use strict";
// Everything that is read aloud or drawn here stands in the page already: without this script nothing is lost but
// the choice. Text is only ever set as text, so that a name in a record can do nothing.
const RUNS = JSON.parse(document.body.dataset.runs);
const all = (where, what) => [...where.querySelectorAll(what)];
const made = (name, text, kind) => Object.assign(document.createElement(name), { textContent: text ?? "", className: kind ?? "" });
const short = (value) => (value === null ? "–" : Number(value.toPrecision(4)).toString());
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function theme() {
  const choice = document.getElementById("theme");
  const apply = (value) => (value ? (document.documentElement.dataset.theme = value) : delete document.documentElement.dataset.theme);
  const kept = { read: () => localStorage.getItem("kernelhead-theme"), write: (value) => localStorage.setItem("kernelhead-theme", value) };
  const trying = (act) => { try { return act(); } catch { return null; } }; // a page from a file may have no storage
  const before = trying(kept.read);
  if (["light", "dark"].includes(before)) { choice.value = before; apply(before); }
  choice.addEventListener("change", () => { apply(choice.value); trying(() => kept.write(choice.value)); });
  choice.closest("label").hidden = false;
}

// Tables: a button in every head of a column; numbers by size, words by letters, what is missing last.
function sortable(table) {
  const body = table.tBodies[0];
  const heads = all(table.tHead, "th");
  const value = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  const key = (text) => (text === "" || text === "–" ? null : Number.isFinite(Number(text)) ? Number(text) : text);
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
  heads.forEach((head, column) => {
    const button = made("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [key(value(row, column)), row]);
      rows.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : (down ? -1 : 1) * order(a, b)));
      body.append(...rows.map(([, row]) => row));
    });
  });
}

// Choices: what carries another value of a key than the one chosen is hidden.
function chooser(box) {
  const section = box.closest("section");
  const selects = all(box, "select[data-key]");
  const apply = () => {
    for (const select of selects) {
      for (const part of all(section, `[data-${select.dataset.key}]`)) {
        part.hidden = select.value !== "" && part.dataset[select.dataset.key] !== select.value;
      }
    }
  };
  selects.forEach((select) => select.addEventListener("change", apply));
  const differing = box.querySelector("input[data-only]");
  differing?.addEventListener("change", () => {
    all(section, "tbody tr:not(.differs)").forEach((row) => { row.hidden = differing.checked; });
  });
  box.hidden = false;
  apply();
}

// A place for what is asked of a picture, beside the pointer or the place chosen by keys, and read aloud.
function saying(plot) {
  const said = plot.appendChild(made("output", "", "said"));
  const place = (x, y) => {
    const { width } = plot.getBoundingClientRect();
    said.style.left = `${clamp(x + 12, 0, Math.max(0, width - said.offsetWidth))}px`;
    said.style.top = `${Math.max(0, y - said.offsetHeight - 12)}px`;
  };
  return {
    say(lines, x, y) { said.replaceChildren(...lines); place(x, y); },
    hush() { said.replaceChildren(); },
  };
}

function asking(plot, { at, move, hush }) {
  plot.addEventListener("pointermove", (event) => at(event.clientX, event.clientY));
  plot.addEventListener("pointerdown", (event) => at(event.clientX, event.clientY));
  plot.addEventListener("pointerleave", hush);
  plot.addEventListener("blur", hush);
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hush();
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-1e9, 0], End: [1e9, 0] };
    if (!steps[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    if (move(...steps[event.key])) event.preventDefault();
  });
}

function charted(svg) {
  const { axes, frame, x, y, lines } = JSON.parse(svg.dataset.chart);
  const [left, top, right, bottom] = frame;
  const scaled = ([low, high, log], from, to) => {
    const f = log ? Math.log : Number;
    return (value) => from + ((f(value) - f(low)) / (f(high) - f(low))) * (to - from);
  };
  const [across, down] = [scaled(x, left, right), scaled(y, bottom, top)];
  const prefix = svg.dataset.name;
  const curves = lines.map((line, number) => {
    const group = document.getElementById(`${prefix}-line-${number}`);
    const path = group?.querySelector("path");
    return {
      ...line, group, path, shown: line.y, drawnFirst: path?.getAttribute("d"),
      band: document.getElementById(`${prefix}-band-${number}`),
      marks: group ? all(group, "use").map((mark) => {
        const far = line.x.map((value) => Math.abs(across(value) - mark.getAttribute("x")));
        return [mark, far.indexOf(Math.min(...far)), mark.getAttribute("y")];
      }) : [],
    };
  });
  const plot = svg.parentElement;
  const { say, hush } = saying(plot);
  const guide = svg.querySelector(".guide");
  const stops = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  let stop = -1;
  const quiet = () => { hush(); stop = -1; guide.style.display = "none"; };
  const show = (number) => {
    stop = clamp(number, 0, stops.length - 1);
    const place = across(stops[stop]);
    const found = [made("span", `${axes[0]} ${short(stops[stop])}`, "at")];
    for (const curve of curves) {
      const far = curve.x.map((value) => Math.abs(across(value) - place));
      const nearest = far.indexOf(Math.min(...far));
      const value = curve.shown?.[nearest] ?? null;
      if (value === null || far[nearest] > 0.03 * (right - left)) continue;
      const { label, glyph, colour } = RUNS[curve.run];
      const key = made("b", glyph);
      key.style.color = `var(--run-${colour})`;
      const line = made("span");
      line.append(key, ` ${[label, curve.name].filter(Boolean).join(", ")}: ${short(value)}`);
      found.push(line);
    }
    guide.setAttribute("x1", place);
    guide.setAttribute("x2", place);
    guide.style.display = "";
    const unit = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    const offset = svg.getBoundingClientRect().left - plot.getBoundingClientRect().left;
    say(found, offset + place * unit, (top + 0.35 * (bottom - top)) * unit);
    return true;
  };
  asking(plot, {
    at(clientX) {
      const box = svg.getBoundingClientRect();
      const place = ((clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const far = stops.map((value) => Math.abs(across(value) - place));
      show(far.indexOf(Math.min(...far)));
    },
    move: (step, up) => (up ? false : show(stop < 0 ? 0 : stop + step)),
    hush: quiet,
  });
  svg.chooseHead = (head) => {
    quiet();
    for (const curve of curves) {
      if (!curve.heads.length || !curve.group) continue;
      curve.shown = head === null ? curve.y : curve.heads[head] ?? null;
      curve.group.style.display = curve.shown ? "" : "none";
      if (curve.band) curve.band.style.display = head === null ? "" : "none";
      if (!curve.shown) continue;
      const points = curve.x.map((value, index) => [across(value), curve.shown[index]]).filter(([, value]) => value !== null);
      const path = points.map(([place, value], index) => `${index ? "L" : "M"} ${place.toFixed(2)} ${down(value).toFixed(2)}`).join(" ");
      curve.path.setAttribute("d", head === null ? curve.drawnFirst : path);
      for (const [mark, index, first] of curve.marks) {
        mark.setAttribute("y", head === null ? first : down(curve.shown[index]));
      }
    }
  };
}

function headed(select) {
  const section = select.closest("section");
  const charts = all(section, "svg[data-chart]");
  select.addEventListener("change", () => {
    const which = select.value === "" ? "" : `, head ${select.value}`;
    all(section, ".which").forEach((each) => { each.textContent = which; });
    charts.forEach((svg) => svg.chooseHead(select.value === "" ? null : Number(select.value)));
  });
}

// Heat maps: a byte a cell, drawn with more or less of a colour over the card, which suits light, dark and paper.
function mapped(section) {
  const [layer, head] = ["layer", "head"].map((key) => section.querySelector(`select[data-map="${key}"]`));
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim().match(/\w\w/g).map((part) => parseInt(part, 16));
  const [more, less] = [colour("--more"), colour("--less")];
  const maps = all(section, "figure.map").map((figure) => {
    const layers = new Map(JSON.parse(figure.dataset.maps).map((each) => [each.path, each]));
    const plot = figure.querySelector(".plot");
    const canvas = plot.querySelector("canvas");
    const cell = plot.appendChild(made("div", "", "cell"));
    cell.hidden = true;
    const { say, hush } = saying(plot);
    const now = { row: -1, column: 0 };
    const quiet = () => { hush(); now.row = -1; cell.hidden = true; };
    const span = (index, cells, points) => {
      const [first, last] = [Math.ceil((index * points) / cells), Math.ceil(((index + 1) * points) / cells) - 1];
      return first >= last ? `${first}` : `${first}–${last}`;
    };
    const show = (row, column) => {
      const { rows, columns, values, points } = now;
      if (!values) return false;
      Object.assign(now, { row: clamp(row, 0, rows - 1), column: clamp(column, 0, columns - 1) });
      const { width, height } = canvas.getBoundingClientRect();
      Object.assign(cell.style, {
        left: `${(now.column * width) / columns}px`, top: `${(now.row * height) / rows}px`,
        width: `${width / columns}px`, height: `${height / rows}px`,
      });
      cell.hidden = false;
      const where = `point ${span(now.row, rows, points[0])} to ${span(now.column, columns, points[1])}`;
      const text = short(Number(values[now.row * columns + now.column].toPrecision(3)));
      say([made("span", where, "at"), made("span", text)], ((now.column + 0.5) * width) / columns, (now.row * height) / rows);
      return true;
    };
    asking(plot, {
      at(clientX, clientY) {
        const box = canvas.getBoundingClientRect();
        show(Math.floor(((clientY - box.top) / box.height) * now.rows), Math.floor(((clientX - box.left) / box.width) * now.columns));
      },
      move: (right, down) => (now.row < 0 ? show(0, 0) : show(now.row + down, now.column + right)),
      hush: quiet,
    });
    const draw = () => {
      quiet();
      const chosen = layers.get(layer.value);
      const heads = chosen?.heads ?? [];
      const picked = head.value === "" ? heads : heads.slice(Number(head.value), Number(head.value) + 1);
      const missing = !picked.length;
      figure.querySelector(".none").hidden = !missing;
      plot.hidden = figure.querySelector(".scale").hidden = missing;
      if (missing) return;
      const [rows, columns] = chosen.shape;
      const values = new Float64Array(rows * columns);
      for (const { low, high, cells } of picked) {
        const bytes = atob(cells);
        for (let index = 0; index < values.length; index++) {
          values[index] += (low + ((high - low) * bytes.charCodeAt(index)) / 255) / picked.length;
        }
      }
      Object.assign(now, { rows, columns, values, points: chosen.points, row: -1, column: 0 });
      const [least, largest] = [Math.min(...values), Math.max(...values)];
      const strongest = Math.max(Math.abs(least), Math.abs(largest)) || 1;
      Object.assign(canvas, { width: columns, height: rows });
      const image = new ImageData(columns, rows);
      values.forEach((value, index) => image.data.set([...(value < 0 ? less : more), Math.round((255 * Math.abs(value)) / strongest)], 4 * index));
      canvas.getContext("2d").putImageData(image, 0, 0);
      const which = head.value === "" ? "mean of heads" : `head ${head.value}`;
      canvas.setAttribute("aria-label", `Heat map: ${RUNS[figure.dataset.run].label}, ${chosen.path}, ${which}, from ${short(least)} to ${short(largest)}`);
      const [from, to] = all(figure, ".scale output");
      const low = Math.min(least, 0);
      from.textContent = short(low);
      to.textContent = short(Math.max(largest, 0));
      const zero = (100 * -low) / (Math.max(largest, 0) - low || 1);
      const shade = (name, value) => `color-mix(in srgb, var(${name}) ${((100 * Math.abs(value)) / strongest).toFixed(0)}%, transparent)`;
      figure.querySelector(".scale i").style.background =
        `linear-gradient(to right, ${shade("--less", low)}, transparent ${zero.toFixed(0)}%, ${shade("--more", Math.max(largest, 0))})`;
      figure.querySelector(".size").textContent = `${chosen.path}, ${which}: ${chosen.kind}; points: ${chosen.points.join(" × ")}, drawn as ${rows} × ${columns} cells`;
    };
    return draw;
  });
  const draw = () => maps.forEach((each) => each());
  [layer, head].forEach((select) => select.addEventListener("change", draw));
  section.querySelector(".choices").hidden = false;
  section.querySelector(".unscripted").hidden = true;
  draw();
}

theme();
all(document, "table.sortable").forEach(sortable);
all(document, "svg[data-chart]").forEach(charted);
all(document, "select[data-head-of-charts]").forEach(headed);
all(document, ".choices:not(.of-maps)").forEach(chooser);
all(document, "section.maps").forEach(mapped);
