"use strict";
// Draws each chart from the table beside it, and asks for a new section after an event of the pool.
const plots = [];
function read(table, isTime) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const rows = [...table.tBodies[0].rows].filter((row) => row.cells.length === names.length);
  const value = (cell) => (cell.textContent === "" ? null : Number(cell.dataset.x ?? cell.textContent));
  return { names, columns: names.map((_, i) => rows.map((row) => value(row.cells[i]))), isTime };
}
function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
function draw(figure) {
  const target = figure.querySelector(".plot");
  if (target.firstChild) return; // It is drawn, and its legend is a table, too.
  const { names, columns, isTime } = read(figure.querySelector("table"), "time" in figure.dataset);
  if (columns[0].length < 2) return;
  const colors = ["--link", "--good", "--bad", "--wait"].map(color);
  const line = (label, i, more) => ({ label, stroke: colors[i % 4], width: 1.5, dash: i < 4 ? undefined : [6, 4], spanGaps: true, ...more });
  const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
  const options = { width: target.clientWidth, height: 240, scales: { x: { time: isTime } }, axes: [axis, axis], series: [{ label: names[0] }] };
  let data = columns;
  let after = 1; // number of the first column that is a line by itself
  if ("band" in figure.dataset) {
    const [x, mean, ...ends] = columns;
    const isInterval = figure.dataset.band === "interval"; // of two ends, instead of a mean and its deviation
    const [low, high] = isInterval ? ends : [-1, 1].map((sign) => mean.map((m, i) => m + sign * ends[0][i]));
    after = isInterval ? 4 : columns.length;
    data = [x, mean, high, low, ...columns.slice(after)];
    options.series.push(line(names[1], 0), line("upper", 0, { width: 0.5 }), line("lower", 0, { width: 0.5 }));
    options.bands = [{ series: [2, 3], fill: colors[0] + "22" }];
  }
  names.slice(after).forEach((name, i) => options.series.push(line(name, after > 1 ? i + 1 : i)));
  plots.push([new uPlot(options, data, target), target]);
}
function drawAll() {
  for (let i = plots.length - 1; i >= 0; i -= 1) if (!plots[i][1].isConnected) plots.splice(i, 1)[0][0].destroy();
  document.querySelectorAll("figure.chart").forEach(draw);
}
// An event asks for the section at once, but at most every three seconds, and once more when all is quiet: the server
// may have answered with a page that it had computed before.
function follow() {
  let [shownAt, slowAt, soon, last] = [Date.now(), Date.now(), 0, 0];
  const show = () => {
    soon = 0;
    if (document.hidden) return;
    shownAt = Date.now();
    document.body.dispatchEvent(new Event("covey"));
    if (shownAt - slowAt > 60000) { slowAt = shownAt; document.body.dispatchEvent(new Event("covey-slow")); }
  };
  const told = () => {
    soon ||= setTimeout(show, Math.max(0, shownAt + 3000 - Date.now()));
    clearTimeout(last);
    last = setTimeout(show, 8000);
  };
  const listen = () => {
    const events = new EventSource("/v1/events");
    events.addEventListener("overview", told);
    events.addEventListener("error", () => { // A browser does not try again after a refusal.
      if (events.readyState === EventSource.CLOSED) setTimeout(() => { told(); listen(); }, 30000);
    });
  };
  listen();
  document.addEventListener("visibilitychange", show);
}
drawAll();
// A section that is replaced keeps what a reader has unfolded.
let unfolded = [];
document.body.addEventListener("htmx:beforeSwap", () => { unfolded = [...document.querySelectorAll("details[id][open]")].map((each) => each.id); });
document.body.addEventListener("htmx:afterSwap", () => unfolded.forEach((id) => document.getElementById(id)?.setAttribute("open", "")));
document.body.addEventListener("htmx:afterSettle", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  plots.splice(0).forEach(([plot]) => plot.destroy());
  drawAll();
});
addEventListener("resize", () => plots.forEach(([plot, target]) => plot.setSize({ width: target.clientWidth, height: 240 })));
if (document.getElementById("live")) follow();
