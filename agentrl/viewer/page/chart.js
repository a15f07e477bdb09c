// A chart: lines over a shared x, drawn by uPlot, with marks on its axis and a legend that follows the cursor.
//
//   lines [{xs, ys, label, color, dash, band}] ─► one x for all ─► uPlot
//   drag ─► onZoom([from, to]) ─► the page's state ─► `zoom` of every chart; a double click ─► onZoom(null)

import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import uPlot from "./vendor/uplot.js";
import { figure } from "./api.js";
import { useListener } from "./parts.js";

const DARK = matchMedia("(prefers-color-scheme: dark)");
const NONE = [];

/** Return the value of a colour of style.css, which differs between light and dark. */
export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const faded = (name) => `color-mix(in srgb, ${color(name)} 14%, transparent)`;

/** Put lines that have each their own x over one x. */
function joined(lines) {
  const xs = [...new Set(lines.flatMap((line) => line.xs))].sort((a, b) => a - b);
  const place = new Map(xs.map((x, i) => [x, i]));
  const over = (line) => {
    const ys = new Array(xs.length).fill(undefined);
    line.xs.forEach((x, i) => (ys[place.get(x)] = line.ys[i] ?? null));
    return ys;
  };
  return [xs, ...lines.map(over)];
}

/** Draw a path through points of the canvas: its line, or what is within it where it has no `dash`. */
function trace(u, name, points, dash) {
  u.ctx.save();
  u.ctx.strokeStyle = u.ctx.fillStyle = color(name);
  u.ctx.setLineDash(dash ?? []);
  u.ctx.beginPath();
  for (const point of points) u.ctx.lineTo(...point);
  if (dash) u.ctx.stroke();
  else u.ctx.fill();
  u.ctx.restore();
}

/** Draw a bound across, restarts from top to bottom, checkpoints on the axis and alarms from above. */
function drawMarks(u, marks, bound) {
  const { left, top, width, height } = u.bbox;
  const [foot, size, y] = [top + height, 4 * devicePixelRatio, bound != null && u.valToPos(bound, "y", true)];
  for (const { x, kind } of marks) {
    const at = u.valToPos(x, "x", true);
    const triangle = (from, to) => [[at, to], [at - size, from], [at + size, from]];
    if (at < left || at > left + width) continue;
    if (kind === "restart") trace(u, "dim", [[at, top], [at, foot]], [4, 4]);
    else if (kind === "alarm") trace(u, "bad", triangle(top, top + 2 * size));
    else trace(u, "dim", triangle(foot, foot - 2 * size));
  }
  if (bound != null) trace(u, "bad", [[left, y], [left + width, y]], [6, 4]);
}

/** Return the options of a chart. It is made once: what changes while it is looked at is read from `latest` whenever it is drawn. */
function options(latest, hover) {
  const { lines, lanes, xName, sync } = latest.current;
  const whole = [1, 2, 5].flatMap((one) => [1, 10, 100, 1e3, 1e4, 1e5, 1e6].map((ten) => one * ten)).sort((a, b) => a - b);
  const axis = { stroke: color("dim"), font: "11px system-ui, sans-serif", grid: { stroke: color("line"), width: 1 }, ticks: { show: false } };
  const series = lines.map((line) => ({
    label: line.label,
    stroke: line.hidden ? "transparent" : color(line.color),
    width: line.hidden ? 0 : (line.width ?? 1.5),
    dash: line.dash,
    fill: line.fill && faded(line.color),
    paths: line.steps && uPlot.paths.stepped({ align: 1 }),
    spanGaps: true,
    points: { show: line.hidden ? false : line.dots || ((u) => u.data[0].length < 3), size: 5 },
  }));
  const bands = lines.flatMap((line, i) => (line.band ? [{ series: [i + 1, i + 2], fill: faded(line.color), dir: -1 }] : []));
  const values = (u, splits) => splits.map((value) => figure(value));
  const ofLanes = lanes && { grid: { show: false }, splits: () => lanes.map((_, i) => 1 - (i + 0.5) / lanes.length), values: () => lanes };
  const range = (u, low, high) => {
    const { bound } = latest.current;
    const [from, to] = [Math.min(low ?? 0, bound ?? Infinity), Math.max(high ?? 1, bound ?? -Infinity)];
    const pad = (to - from || Math.abs(to) || 1) * 0.08;
    return [from >= 0 && from < pad * 4 ? 0 : from - pad, to + pad];
  };
  const select = (u) => {
    const { left, width } = u.select;
    if (width < 4) return;
    latest.current.onZoom?.([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  };
  const draw = (u) => {
    latest.current.draw?.(u);
    drawMarks(u, latest.current.marks ?? NONE, latest.current.bound);
  };
  return {
    series: [{}, ...series],
    bands,
    scales: { x: { time: false }, y: { range: lanes ? [0, 1] : range } },
    axes: [{ ...axis, values, size: 26, space: 44, incrs: xName === "second" ? undefined : whole }, { ...axis, values, size: 52, ...ofLanes }],
    legend: { show: false },
    cursor: { y: false, sync: sync && { key: sync }, drag: { x: true, y: false, setScale: false }, bind: { dblclick: () => () => latest.current.onZoom?.(null) } },
    hooks: { setCursor: [(u) => hover(u.cursor.idx)], setSelect: [select], draw: [draw] },
  };
}

/**
 * Draw lines. `metric` is the metric's own name, `bound` a horizontal line that nothing should pass, `zoom` the part of x that is shown;
 * `lanes` names what `draw` adds to the canvas, and `keys` its colours.
 */
export function Chart(props) {
  const { title, unit, metric, lines, marks = NONE, bound, zoom, tall, xName = "step", keys = NONE } = props;
  const box = useRef();
  const plot = useRef();
  const [dark, setDark] = useState(DARK.matches);
  useListener(DARK, "change", () => setDark(DARK.matches));
  const [index, setIndex] = useState(null);
  const data = useMemo(() => joined(lines), [lines]);
  const height = tall ? 260 : 150;
  const shape = lines.map((line) => line.label + line.color).join();
  const empty = !data[0].length;
  const latest = useRef(props);
  latest.current = props;
  useEffect(() => {
    if (empty) return undefined;
    const size = { width: box.current.clientWidth, height };
    plot.current = new uPlot({ ...size, ...options(latest, setIndex) }, data, box.current);
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: box.current.clientWidth, height }));
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
      plot.current = undefined;
    };
  }, [shape, dark, height, empty]);
  useEffect(() => {
    const xs = data[0];
    if (!plot.current) return;
    plot.current.setData(data, false);
    plot.current.setScale("x", { min: zoom?.[0] ?? xs[0], max: zoom?.[1] ?? (xs.length > 1 ? xs.at(-1) : xs[0] + 1) });
  }, [data, zoom, shape, dark, marks, bound, props.draw]);
  const at = index ?? data[0].length - 1;
  const here = index == null ? [] : marks.filter((mark) => mark.x === data[0][at]);
  const labels = [...new Set(lines.filter((line) => !line.hidden).map((line) => line.label))];
  const value = (ys) => ys[at] ?? (index == null ? ys.findLast((y) => y != null) : null);
  return html`<figure class="chart ${tall ? "tall" : ""}">
    <figcaption>
      <span class="title" title=${metric}>${title}</span>${unit && html`<span class="unit">${unit}</span>`}
      <span class="at">${!empty ? `${xName} ${figure(data[0][at], 4)}` : ""}</span>
    </figcaption>
    <div class="legend">
      ${labels.map((label) => {
        const of = lines.map((line, i) => [line, i]).filter(([line]) => line.label === label && !line.hidden);
        const [[{ color: own, dash }], several] = [of[0], of.length > 1];
        const key = { "--key": several ? "var(--dim)" : `var(--${own})` };
        const figures = of.map(([line, i]) => html`<b style=${several ? { color: `var(--${line.color})` } : {}}>${figure(value(data[i + 1]))} </b>`);
        return html`<span class="item"><i class="key ${dash ? (dash[0] < 4 ? "dotted" : "dashed") : ""}" style=${key}></i>${label} ${figures}</span>`;
      })}
      ${bound != null && html`<span class="item"><i class="key dashed" style=${{ "--key": "var(--bad)" }}></i>bound <b>${figure(bound)}</b></span>`}
      ${keys.map(([name, key]) => html`<span class="item"><i class="swatch" style=${{ "--key": `var(--${key})` }}></i>${name}</span>`)}
      ${here.map((mark) => html`<span class="item ${mark.kind}">${mark.text}</span>`)}
    </div>
    <div class="plot" ref=${box} role="img" aria-label=${`${title}: ${lines.map((line, i) => `${line.label} ${figure(value(data[i + 1]))}`).join(", ")}`}></div>
    ${empty && html`<p class="empty">nothing measured yet</p>`}
  </figure>`;
}
