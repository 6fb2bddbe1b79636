// A line chart over training steps. It is redrawn when its width changes, and shows the values under the pointer.

const HEIGHT = 220, LEFT = 52, RIGHT = 14, TOP = 12, BOTTOM = 28;

// About `count` round tick values, 1, 2 or 5 times a power of ten apart, that enclose `low` and `high`.
export function ticks(low, high, count = 4) {
  if (high <= low) [low, high] = [low - (Math.abs(low) * 0.1 || 0.5), high + (Math.abs(high) * 0.1 || 0.5)];
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].reduce((best, one) => (Math.abs(one * power - raw) < Math.abs(best * power - raw) ? one : best));
  const first = Math.floor(low / step + 1e-9), last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

// A number on an axis: 0, 0.25, 12k, 1.5M, 3e-4.
export function compact(value) {
  if (value === 0) return "0";
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (Math.abs(value) >= limit) return `${Number((value / limit).toPrecision(4))}${unit}`;
  return Math.abs(value) < 0.01 ? value.toExponential(1).replace(".0e", "e") : `${Number(value.toPrecision(4))}`;
}

// series: [{ name, style, points: [[step, value], ...], dots }]; `format` turns a value into text.
export function chart(title, series, format, { fromZero = false } = {}) {
  const { element, svgElement, widthOf } = globalThis.regardExplain;
  const shown = series.filter((one) => one.points.length);
  const legend = element("p", { class: "run-legend" }, ...shown.map((one) => element("span", {}, element("i", { class: one.style }),
    `${series.length > 1 ? one.name : "last"} `, element("b", {}, format(one.points.at(-1)[1])))));
  const stage = element("div", { class: "run-stage" });
  const figure = element("figure", { class: "card run-chart" }, element("figcaption", {}, element("h3", {}, title), legend), stage);
  if (!shown.length) { stage.append(element("p", { class: "note" }, "Nothing yet.")); return figure; }
  const all = shown.flatMap((one) => one.points);
  const values = all.map(([, y]) => y);
  const yTicks = ticks(Math.min(...values, ...(fromZero ? [0] : [])), Math.max(...values, ...(fromZero ? [0] : [])));
  const xMax = Math.max(1, ...all.map(([x]) => x));

  function draw() {
    const width = Math.max(240, stage.clientWidth || 480);
    const x = (step) => LEFT + (step / xMax) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - ((value - yTicks[0]) / (yTicks.at(-1) - yTicks[0])) * (HEIGHT - TOP - BOTTOM);
    const svg = svgElement("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img",
      "aria-label": `${title} over ${Math.round(xMax)} steps: ${shown.map((one) => `${one.name} ${format(one.points.at(-1)[1])}`).join(", ")}` });
    for (const tick of yTicks) {
      svg.append(svgElement("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
        svgElement("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, compact(tick)));
    }
    for (const tick of ticks(0, xMax, width < 400 ? 3 : 5).filter((one) => one <= xMax)) {
      svg.append(svgElement("text", { x: x(tick), y: HEIGHT - 8, "text-anchor": tick ? "middle" : "start" }, compact(tick)));
    }
    for (const one of [...shown].reverse()) { // so that the first curve is on top
      svg.append(svgElement("polyline", { class: one.style, points: one.points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") }));
      if ((one.dots && one.points.length <= 60) || one.points.length === 1) svg.append(...one.points.map(([a, b]) => svgElement("circle", { class: one.style, cx: x(a), cy: y(b), r: 2.8 })));
    }
    svg.append(pointer(svg, width, x, y));
    stage.replaceChildren(svg);
  }

  // A label with the values at the step nearest to the pointer.
  function pointer(svg, width, x, y) {
    const mark = svgElement("g", { class: "mark", visibility: "hidden" });
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const step = ((event.clientX - box.left) * (width / box.width) - LEFT) / (width - LEFT - RIGHT) * xMax;
      const near = shown.map((one) => [one, one.points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best))]);
      const at = near.reduce((best, [, point]) => (Math.abs(point[0] - step) < Math.abs(best - step) ? point[0] : best), near[0][1][0]);
      const lines = [`step ${Math.round(at).toLocaleString("en")}`, ...near.map(([one, point]) => `${one.name} ${format(point[1])}`)];
      const labelWidth = Math.max(...lines.map((line) => widthOf(line, 12))) + 18;
      const left = x(at) + 10 + labelWidth < width ? x(at) + 10 : x(at) - 10 - labelWidth;
      mark.replaceChildren(svgElement("line", { x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM }),
        ...near.map(([one, point]) => svgElement("circle", { class: one.style, cx: x(point[0]), cy: y(point[1]), r: 4 })),
        svgElement("rect", { x: left, y: TOP, width: labelWidth, height: lines.length * 16 + 10, rx: 6 }),
        ...lines.map((line, i) => svgElement("text", { x: left + 9, y: TOP + 17 + 16 * i }, line)));
      mark.setAttribute("visibility", "visible");
    });
    svg.addEventListener("pointerleave", () => mark.setAttribute("visibility", "hidden"));
    return mark;
  }

  let width = 0;
  new ResizeObserver(() => { if (stage.clientWidth && Math.abs(stage.clientWidth - width) > 2) { width = stage.clientWidth; draw(); } }).observe(stage);
  return figure;
}
