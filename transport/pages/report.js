// Draws the charts and the matrix of a report, again whenever the colours or the paper change.

const part = (id) => document.getElementById(id);
const page = JSON.parse(part("data").textContent);
const COLORS = ["c0", "c1", "c2", "c3", "c4", "c5", "c6"];
const FLAT = ["bars", "spans"];

function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

// The value at a tick or in a tooltip. Nouns such as "calls" are the title of the axis already.
function tick(value, unit) {
  return unit === "ns" || unit.startsWith("bytes") ? amount(value, unit) : amount(value, "").trim();
}

function said(value, unit) {
  if (value === null) return "?";
  return amount(Array.isArray(value) ? value[1] : value, unit);
}

function datasetOf(one, [name, values], at) {
  const color = cssColor(COLORS[at % COLORS.length]);
  const made = { label: name, data: values, backgroundColor: color, borderColor: color };
  if (one.kind === "areas") {
    return { ...made, backgroundColor: color + "40", fill: true, stepped: "middle", pointRadius: 0, borderWidth: 1.5 };
  }
  return { ...made, borderWidth: 0, maxBarThickness: FLAT.includes(one.kind) ? 28 : 64 };
}

// A span is a solid bar up to its least value, and a pale one from there to its most.
function datasetsOf(one) {
  if (one.kind !== "spans") return one.series.map((each, at) => datasetOf(one, each, at));
  const [[, values]] = one.series;
  const [least, most] = [values.map((each) => each[0]), datasetOf(one, ["up to", values], 0)];
  return [
    { ...datasetOf(one, ["at least", least], 0), grouped: false },
    { ...most, backgroundColor: most.borderColor + "70", grouped: false, minBarLength: 4 },
  ];
}

function chartOf(one) {
  const flat = FLAT.includes(one.kind), isNoun = one.unit !== "ns" && !one.unit.startsWith("bytes");
  const stacked = one.kind === "stack" || one.kind === "bars";
  const ink = cssColor("ink"), line = cssColor("line");
  const values = {
    stacked, beginAtZero: true, grid: { color: line }, border: { color: line },
    ticks: { color: ink, maxTicksLimit: 7, precision: isNoun ? 0 : undefined, callback: (value) => tick(value, one.unit) },
    title: { display: isNoun, text: one.unit, color: ink },
  };
  const names = {
    stacked, grid: { display: false }, border: { color: line },
    ticks: { color: ink, autoSkip: !flat, maxRotation: 60, maxTicksLimit: flat ? undefined : 13 },
    title: { display: one.axis !== "", text: one.axis, color: ink },
  };
  return new Chart(part("chart-" + one.id), {
    type: one.kind === "areas" ? "line" : "bar",
    data: { labels: one.labels, datasets: datasetsOf(one) },
    options: {
      animation: false, responsive: true, maintainAspectRatio: false, indexAxis: flat ? "y" : "x",
      scales: flat ? { x: values, y: names } : { x: names, y: values },
      interaction: { mode: "index", intersect: false, axis: flat ? "y" : "x" },
      plugins: {
        legend: { display: one.series.length > 1 || one.kind === "spans", position: "bottom", labels: { color: ink, boxWidth: 14 } },
        tooltip: { callbacks: { label: (item) => `${item.dataset.label}: ${said(item.raw, one.unit)}` } },
      },
    },
  });
}

let charts = [], showMatrix = null, shown = 0;

function drawAll() {
  for (const one of charts) one.destroy();
  charts = page.charts.map(chartOf);
  if (showMatrix !== null) showMatrix(page.matrices[shown]);
  document.body.dataset.drawn = charts.length;
}

// Shows the matrix of the chosen measure and kind of row, and its table.
function choose() {
  const [measure, kind] = ["measure", "kind"].map((name) => {
    return Number(document.querySelector(`input[name=${name}]:checked`)?.value ?? 0);
  });
  shown = kind * document.querySelectorAll("input[name=measure]").length + measure;
  document.querySelectorAll(".largest").forEach((one, at) => { one.hidden = at !== shown; });
  showMatrix(page.matrices[shown]);
}

if (page.matrices.length) {
  showMatrix = matrixView(part("frame"), part("view"), part("cell"), part("log"), page.matrices[0]);
  document.querySelectorAll("input[type=radio]").forEach((one) => one.addEventListener("change", choose));
  choose();
}
document.querySelectorAll(".copy").forEach((button) => {
  button.addEventListener("click", () => {
    const text = button.previousElementSibling.textContent;
    navigator.clipboard.writeText(text).then(() => { button.textContent = "copied"; });
  });
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
// Paper is light, and as wide as A4, whatever the screen is.
function onPaper(printed) {
  document.documentElement.classList.toggle("printed", printed);
  drawAll();
}
window.addEventListener("beforeprint", () => onPaper(true));
window.addEventListener("afterprint", () => onPaper(false));
drawAll();
