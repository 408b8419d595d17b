// The picture of the clip with a ratio to drag. Its dots move on the lines of images/clipped_objective.svg, by the same
// numbers; tests/test_docs.py compares the two.
"use strict";
for (const place of document.querySelectorAll(".clip")) {
  const EPSILON = 0.2, LOWEST = 0.5, HIGHEST = 1.5; // of ratios
  const RIGHT = 240, UP = 130; // of the drawing, for a ratio and for an objective that are larger by 1
  const svg = place.querySelector("svg.drawing");
  const panels = [...svg.querySelectorAll("circle")].map((dot) => (
    { dot, x: +dot.getAttribute("cx"), y: +dot.getAttribute("cy"), advantage: +dot.dataset.advantage }
  ));
  const controls = document.createElement("div");
  controls.innerHTML = `<label>ratio ρ <input type="range" min="${LOWEST}" max="${HIGHEST}" step="0.01" value="1"></label>
    <output></output><output></output>`;
  place.append(controls);
  const slider = controls.querySelector("input"), outputs = controls.querySelectorAll("output");
  const written = (number) => number.toFixed(2).replace("-", "−");

  function show() {
    const ratio = +slider.value, clipped = Math.min(Math.max(ratio, 1 - EPSILON), 1 + EPSILON);
    panels.forEach(({ dot, x, y, advantage }, i) => {
      const plain = ratio * advantage, flat = clipped * advantage, objective = Math.min(plain, flat);
      dot.setAttribute("cx", x + RIGHT * (ratio - 1));
      dot.setAttribute("cy", y - UP * (objective - advantage));
      const gradient = flat < plain ? "flat: no gradient" : `the gradient ${advantage > 0 ? "raises" : "lowers"} ρ`;
      outputs[i].innerHTML = `min(${written(plain)}, ${written(flat)}) = <b>${written(objective)}</b><br>${gradient}`;
    });
  }
  function drag({ clientX, clientY }) {
    const x = new DOMPoint(clientX, clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
    const panel = panels.reduce((a, b) => (Math.abs(x - a.x) < Math.abs(x - b.x) ? a : b));
    slider.value = 1 + (x - panel.x) / RIGHT;
    show();
  }
  svg.addEventListener("pointerdown", (event) => { svg.setPointerCapture(event.pointerId); drag(event); });
  svg.addEventListener("pointermove", (event) => { if (svg.hasPointerCapture(event.pointerId)) drag(event); });
  slider.addEventListener("input", show);
  show();
}
