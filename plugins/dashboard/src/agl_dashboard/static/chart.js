// A cross-hair on charts: the values of all curves at the step under the pointer. The points come with the SVG.

const SVG = "http://www.w3.org/2000/svg";

export function crosshair(root) {
  for (const svg of root.querySelectorAll("svg[data-chart]")) attach(svg, JSON.parse(svg.dataset.chart));
}

function attach(svg, curves) {
  const box = svg.viewBox.baseVal;
  const line = make("line", { class: "hair", y1: 12, y2: box.height - 26, visibility: "hidden" });
  const said = make("text", { class: "hairtext", y: 10, visibility: "hidden" });
  svg.append(line, said);

  svg.addEventListener("pointermove", (event) => {
    const x = (event.offsetX / svg.clientWidth) * box.width;
    const near = curves.map((curve) => [curve.name, closest(curve.points, x)]);
    const at = near.reduce((best, one) => (Math.abs(one[1][2] - x) < Math.abs(best[1][2] - x) ? one : best));
    const same = near.filter(([, point]) => point[0] === at[1][0]);
    const px = at[1][2];
    for (const one of [line]) { one.setAttribute("x1", px); one.setAttribute("x2", px); }
    said.setAttribute("x", Math.min(Math.max(px, 90), box.width - 90));
    said.textContent = `${at[1][0]}: ` + same.map(([name, p]) =>
      `${curves.length > 1 ? `${name.replaceAll("_", " ")} ` : ""}${short(p[1])}${p[4] === null ? "" : ` (${short(p[4])} – ${short(p[5])})`}`).join(", ");
    show("visible");
  });
  svg.addEventListener("pointerleave", () => show("hidden"));

  function show(how) { line.setAttribute("visibility", how); said.setAttribute("visibility", how); }
}

function closest(points, x) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][2] < x) low = middle; else high = middle;
  }
  return Math.abs(points[low][2] - x) <= Math.abs(points[high][2] - x) ? points[low] : points[high];
}

function short(value) {
  return Math.abs(value) >= 1e-3 || value === 0 ? Number(value.toPrecision(4)).toLocaleString("en") : value.toExponential(1);
}

function make(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
