// Draws a matrix of values by sender and receiver on a canvas, with axes, a colour scale, zoom and hover.

// Decodes base64 into a typed array; numbers are little-endian.
function unpacked(text, Kind) {
  const packed = atob(text);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  return new Kind(bytes.buffer);
}

// Values and states of all cells, row after row.
function cellsOf(data) {
  const size = data.labels.length;
  const Floats = data.floats === "f4" ? Float32Array : Float64Array;
  let values = unpacked(data.values, Floats);
  let states = unpacked(data.states, Uint8Array);
  if (data.cells !== null) {
    const at = unpacked(data.cells, Uint32Array);
    const [cellValues, cellStates] = [values, states];
    values = new Floats(size * size);
    states = new Uint8Array(size * size);
    for (let i = 0; i < at.length; i++) {
      values[at[i]] = cellValues[i];
      states[at[i]] = cellStates[i];
    }
  }
  for (const packed of data.unknown) {
    const group = unpacked(packed, Uint32Array);
    for (const row of group) for (const column of group) if (row !== column) states[row * size + column] |= 4;
  }
  return [values, states];
}

// A value with its unit, as the commands write it: 1.5 MB, 83 us.
function amount(value, unit) {
  const steps = unit === "ns" ? ["ns", "us", "ms", "s"] : ["", "k", "M", "G", "T", "P"];
  let at = 0;
  while (at + 1 < steps.length && Math.abs(value) >= 999.95) { value /= 1000; at++; }
  const text = Number(value.toPrecision(4)).toString();
  if (unit === "ns") return `${text} ${steps[at]}`;
  return unit.startsWith("bytes") ? `${text} ${steps[at]}B${unit.slice(5)}` : `${text}${steps[at]} ${unit}`;
}

// frame: the element around the canvas. view: the canvas. box: shows the cell under the pointer. log: the checkbox of
// the colour scale. data.borders: [row, kind] of each line before a row and column; kind: "host" or "rack". data.racks:
// the rack of each row; empty: not told.
// Returns a function that shows the data of another matrix.
function matrixView(frame, view, box, log, data) {
  let size, values, states, most, least, used;

  function take(given) {
    data = given;
    size = data.labels.length;
    [values, states] = cellsOf(data);
    most = 0;
    least = Infinity;
    let bits = 0;
    for (let i = 0; i < values.length; i++) {
      const value = values[i];
      bits |= states[i];
      if (value > most) most = value;
      if (value > 0 && value < least) least = value;
    }
    used = [1, 2].filter((bit) => bits & bit);  // states of cells with a value: measured, derived
  }

  const isLogarithmic = () => log.checked && most > least;
  // Part of the colour scale, from 0 to 1, at which a value is.
  function share(value, logarithmic) {
    if (value <= 0 || most <= 0) return 0;
    return logarithmic ? 0.1 + 0.9 * Math.log(value / least) / Math.log(most / least) : value / most;
  }
  // The inverse of share().
  const valueAt = (part, logarithmic) =>
    logarithmic ? least * Math.pow(most / least, Math.max(part - 0.1, 0) / 0.9) : part * most;

  // Colours of the page's scheme, as [red, green, blue].
  let colors = {};
  function readColors() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["paper", "ink", "faint", "line", "measured", "derived", "unknown"]) {
      const hex = style.getPropertyValue("--" + name).trim().slice(1);
      const digits = hex.length === 3 ? [...hex].map((one) => one + one).join("") : hex;
      colors[name] = [0, 2, 4].map((at) => parseInt(digits.slice(at, at + 2), 16));
    }
  }
  const css = (color) => `rgb(${color.map(Math.round).join(" ")})`;
  const mixed = (color, depth) => colors.paper.map((one, at) => one + (color[at] - one) * (0.12 + 0.88 * depth));

  // The cells as rows of blocks of `fold` x `fold` cells: the largest value of each block, and its state.
  function pooled(fold) {
    if (fold === 1) return [size, values, states];
    const side = Math.ceil(size / fold);
    const largest = new Float64Array(side * side), kinds = new Uint8Array(side * side);
    for (let row = 0; row < size; row++) {
      for (let column = 0; column < size; column++) {
        const from = row * size + column, to = Math.floor(row / fold) * side + Math.floor(column / fold);
        if (states[from] === 0) continue;
        const isLarger = states[from] & 3 && (!(kinds[to] & 3) || values[from] > largest[to]);
        if (isLarger) largest[to] = values[from];
        if (isLarger || !kinds[to]) kinds[to] = states[from];
      }
    }
    return [side, largest, kinds];
  }

  // fold -> a canvas with a pixel for each block of cells. Of a large matrix no single cell would be seen otherwise.
  const pictures = new Map();
  function pictureOf(fold) {
    if (!pictures.has(fold)) pictures.set(fold, painted(...pooled(fold)));
    return pictures.get(fold);
  }
  function painted(side, values, states) {
    const logarithmic = isLogarithmic();
    const picture = document.createElement("canvas");
    picture.width = picture.height = side;
    const context = picture.getContext("2d");
    const image = context.createImageData(side, side);
    const pixels = new Uint32Array(image.data.buffer);  // alpha, blue, green, red from the highest byte
    const pixel = ([red, green, blue]) => (0xff000000 | blue << 16 | green << 8 | red) >>> 0;
    const unknown = pixel(colors.unknown);
    pixels.fill(pixel(colors.paper));
    for (let i = 0; i < pixels.length; i++) {
      const state = states[i];
      const color = state & 1 ? colors.measured : colors.derived;
      if (state & 3) pixels[i] = pixel(mixed(color, share(values[i], logarithmic)));
      else if (state & 4) pixels[i] = unknown;
    }
    context.putImageData(image, 0, 0);
    return picture;
  }
  function paint() {
    pictures.clear();
    draw();
  }

  const SCALE = 104, FONT = "12px system-ui, sans-serif", LABEL_MAX = 110;
  let zoom = 1, left = 0, top_ = 0;  // the part that is seen: `size / zoom` cells from (left, top_)
  let grid = { x: 0, y: 0, side: 1 };  // where the cells are on the canvas, in CSS pixels

  function fitted(context, text) {
    if (context.measureText(text).width <= LABEL_MAX) return text;
    while (text && context.measureText(text + "…").width > LABEL_MAX) text = text.slice(0, -1);
    return text + "…";
  }

  function draw() {
    const width = frame.clientWidth, ratio = window.devicePixelRatio || 1;
    const context = view.getContext("2d");
    context.font = FONT;
    const widest = Math.max(...[0, size >> 1, size - 1].concat(size <= 256 ? [...data.labels.keys()] : [])
      .map((at) => context.measureText(fitted(context, data.labels[at])).width));
    const margin = Math.ceil(widest) + 30;
    const side = Math.max(width - margin - SCALE, 60);
    const height = side + margin + 8;
    grid = { x: margin, y: margin, side };
    view.width = width * ratio;
    view.height = height * ratio;
    view.style.height = `${height}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = FONT;
    context.imageSmoothingEnabled = false;
    const part = size / zoom;
    let fold = 1;
    while (fold < size && side * ratio / part * fold < 2) fold *= 2;
    const seen = [left / fold, top_ / fold, part / fold, part / fold];
    context.drawImage(pictureOf(fold), ...seen, margin, margin, side, side);
    context.strokeStyle = css(colors.line);
    context.strokeRect(margin - 0.5, margin - 0.5, side + 1, side + 1);
    drawUnknown(context, margin, side, part);
    drawBorders(context, margin, side, part);
    drawAxes(context, margin, side, part, widest);
    drawScale(context, width - SCALE + 14, margin, side);
  }

  // A "?" in each unknown cell that is large enough for it.
  function drawUnknown(context, margin, side, part) {
    const cell = side / part;
    if (cell < 11) return;
    context.fillStyle = css(colors.ink);
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let row = Math.floor(top_); row < Math.min(size, top_ + part); row++) {
      for (let column = Math.floor(left); column < Math.min(size, left + part); column++) {
        const x = margin + (column + 0.5 - left) * cell, y = margin + (row + 0.5 - top_) * cell;
        const inside = x >= margin && y >= margin && x <= margin + side && y <= margin + side;
        if (inside && states[row * size + column] === 4) context.fillText("?", x, y);
      }
    }
  }

  // A line between the rows, and between the columns, of two hosts or racks.
  function drawBorders(context, margin, side, part) {
    const cell = side / part, borders = data.borders ?? [];
    const racks = borders.filter(([, kind]) => kind === "rack");
    const apart = (lines) => side * size / part / (lines.length + 1);  // in CSS pixels
    for (const [row, kind] of borders) {
      if (kind === "host" && apart(borders) < 8) continue;  // lines would hide the cells
      const isBold = kind === "rack" && apart(racks) > 40;
      context.strokeStyle = css(isBold ? colors.ink : kind === "rack" ? colors.faint : colors.unknown);
      context.lineWidth = isBold ? 1.5 : 0.5;
      context.beginPath();
      for (const [first, upright] of [[left, true], [top_, false]]) {
        const at = margin + (row - first) * cell;
        if (at <= margin || at >= margin + side) continue;
        context.moveTo(upright ? at : margin, upright ? margin : at);
        context.lineTo(upright ? at : margin + side, upright ? margin + side : at);
      }
      context.stroke();
    }
  }

  function drawAxes(context, margin, side, part, widest) {
    const cell = side / part, upright = widest > 30 || widest + 6 > cell;
    let pause = 1;
    while (pause * cell < 15) pause *= 2;
    context.fillStyle = css(colors.ink);
    context.textBaseline = "middle";
    for (let at = Math.floor(left / pause) * pause; at < Math.min(size, left + part); at += pause) {
      const x = margin + (at + 0.5 - left) * cell;
      if (x < margin) continue;
      context.save();
      context.translate(x, margin - 5);
      if (upright) context.rotate(-Math.PI / 2);
      context.textAlign = upright ? "left" : "center";
      context.fillText(fitted(context, data.labels[at]), 0, upright ? 0 : -7);
      context.restore();
    }
    context.textAlign = "right";
    for (let at = Math.floor(top_ / pause) * pause; at < Math.min(size, top_ + part); at += pause) {
      const y = margin + (at + 0.5 - top_) * cell;
      if (y >= margin) context.fillText(fitted(context, data.labels[at]), margin - 5, y);
    }
    context.fillStyle = css(colors.faint);
    context.textAlign = "center";
    context.fillText(`to ${data.by}`, margin + side / 2, 8);
    context.save();
    context.translate(8, margin + side / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(`from ${data.by}`, 0, 0);
    context.restore();
  }

  // The colour scale: a strip for each state that the matrix has, with values beside it.
  function drawScale(context, x, y, side) {
    const kinds = used.map((bit) => [bit, bit === 1 ? colors.measured : colors.derived]);
    if (!kinds.length || most <= 0) return;
    const height = Math.min(side, 260), logarithmic = isLogarithmic(), strip = 16 / kinds.length;
    kinds.forEach(([, color], number) => {
      for (let at = 0; at < height; at++) {
        context.fillStyle = css(mixed(color, 1 - at / height));
        context.fillRect(x + number * strip, y + at, strip, 1.5);
      }
    });
    context.fillStyle = css(colors.ink);
    context.textAlign = "left";
    const lowest = logarithmic ? 0.1 : 0;
    for (let step = 0; step <= 4; step++) {
      const part = lowest + (1 - lowest) * step / 4;
      const at = y + height * (1 - part);
      const text = amount(valueAt(part, logarithmic), data.unit);
      context.fillText(text, x + 20, Math.min(Math.max(at, y + 5), y + height - 4));
    }
    context.fillStyle = css(colors.faint);
    context.fillText(data.measure, x, y - 10);
  }

  function keep() {
    const part = size / zoom;
    left = Math.min(Math.max(left, 0), size - part);
    top_ = Math.min(Math.max(top_, 0), size - part);
  }
  function place(event) {
    const box = view.getBoundingClientRect(), part = size / zoom;
    return [
      left + (event.clientX - box.left - grid.x) / grid.side * part,
      top_ + (event.clientY - box.top - grid.y) / grid.side * part,
    ];
  }
  const names = [[1, "measured"], [2, "derived"], [4, "unknown"]];
  function describe(event) {
    const [column, row] = place(event).map(Math.floor);
    const part = size / zoom;
    const inside = row >= Math.floor(top_) && column >= Math.floor(left) && row < top_ + part && column < left + part;
    box.style.display = inside ? "block" : "none";
    if (!inside) return;
    const at = row * size + column;
    const state = names.filter(([bit]) => states[at] & bit).map(([, name]) => name).join(" and ");
    const value = states[at] & 3 ? amount(values[at], data.unit) : states[at] & 4 ? "?" : "no value";
    const name = (at) => data.labels[at] + (data.racks[at] ? ` (rack ${data.racks[at]})` : "");
    box.textContent = `from ${name(row)} to ${name(column)}: ${value}${state ? ` (${state})` : ""}`;
    const edge = frame.getBoundingClientRect();
    const x = event.clientX - edge.left, y = event.clientY - edge.top;
    box.style.left = `${Math.max(0, x + 14 + box.offsetWidth > edge.width ? x - 14 - box.offsetWidth : x + 14)}px`;
    box.style.top = `${y + 14}px`;
  }
  let held = null;
  view.addEventListener("pointerdown", (event) => { held = [event.clientX, event.clientY, left, top_]; });
  window.addEventListener("pointerup", () => { held = null; });
  view.addEventListener("pointerleave", () => { box.style.display = "none"; });
  view.addEventListener("pointermove", (event) => {
    if (held) {
      const scale = size / zoom / grid.side;
      left = held[2] - (event.clientX - held[0]) * scale;
      top_ = held[3] - (event.clientY - held[1]) * scale;
      keep();
      draw();
    }
    describe(event);
  });
  view.addEventListener("wheel", (event) => {
    if (frame.dataset.zoom === "ctrl" && !event.ctrlKey) return;  // the wheel scrolls a long page
    event.preventDefault();
    const [x, y] = place(event);
    const before = zoom;
    zoom = Math.min(Math.max(zoom * Math.exp(-event.deltaY / 400), 1), Math.max(size / 4, 1));
    left = x - (x - left) * before / zoom;
    top_ = y - (y - top_) * before / zoom;
    keep();
    draw();
  }, { passive: false });
  view.addEventListener("dblclick", () => { zoom = 1; left = top_ = 0; draw(); });
  log.checked = data.log;
  log.addEventListener("change", paint);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColors(); paint(); });
  new ResizeObserver(draw).observe(frame);
  readColors();
  take(data);
  paint();
  return (other) => {
    const moved = other.labels.length !== size;
    take(other);
    if (moved) {
      zoom = 1;
      left = top_ = 0;
    }
    readColors();
    paint();
  };
}
