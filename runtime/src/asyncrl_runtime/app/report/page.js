for (const svg of document.querySelectorAll("svg[data-hover]")) {
  const data = JSON.parse(svg.dataset.hover), cross = svg.querySelector(".cross");
  const figure = svg.closest("figure"), tip = document.createElement("div");
  tip.className = "tip"; tip.hidden = true; figure.append(tip);
  const nearest = (points, x) => points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
  svg.addEventListener("mousemove", event => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const share = Math.min(1, Math.max(0, ((event.clientX - box.left) * scale - data.left) / data.width));
    const wanted = data.x[0] + share * (data.x[1] - data.x[0]);
    const rows = data.lines.filter(line => line.points.length).map(line => [line, nearest(line.points, wanted)]);
    if (!rows.length) return;
    const x = rows.map(row => row[1]).reduce((a, b) => Math.abs(b[0] - wanted) < Math.abs(a[0] - wanted) ? b : a)[0];
    const pixel = data.left + (x - data.x[0]) / (data.x[1] - data.x[0]) * data.width;
    cross.setAttribute("x1", pixel); cross.setAttribute("x2", pixel); cross.removeAttribute("hidden");
    tip.replaceChildren(Object.assign(document.createElement("b"), {textContent: "step " + Math.round(x)}));
    for (const [line, point] of rows) {
      const row = document.createElement("div"), dot = document.createElement("i");
      dot.style.background = `var(--${line.color})`;
      row.append(dot, `${line.label}: ${Number(point[1].toPrecision(4))}`);
      tip.append(row);
    }
    tip.hidden = false;
    const at = event.clientX - figure.getBoundingClientRect().left;
    tip.style.left = (at > figure.clientWidth / 2 ? at - tip.offsetWidth - 14 : at + 14) + "px";
    tip.style.top = event.clientY - figure.getBoundingClientRect().top - 20 + "px";
  });
  svg.addEventListener("mouseleave", () => { tip.hidden = true; cross.setAttribute("hidden", "hidden"); });
}
