"use strict";

// Curves: a line under the finger and the values there.
for (const plot of document.querySelectorAll("[data-chart]")) {
  const { steps, first, last, series } = JSON.parse(plot.dataset.chart);
  const drawing = plot.querySelector(".drawing");
  const output = plot.parentElement.querySelector("output");
  const cursor = document.createElement("div");
  cursor.className = "cursor";
  const show = (event) => {
    const box = drawing.getBoundingClientRect();
    const wanted = first + ((event.clientX - box.left) / box.width) * (last - first);
    let nearest = 0;
    steps.forEach((step, i) => { if (Math.abs(step - wanted) < Math.abs(steps[nearest] - wanted)) nearest = i; });
    const values = series.map(([name, row]) => `${name} ${row[nearest] ?? "none"}`).join(", ");
    output.textContent = `step ${steps[nearest]}: ${values}`;
    cursor.style.left = `${(100 * (steps[nearest] - first)) / (last - first)}%`;
    drawing.append(cursor);
  };
  plot.addEventListener("pointermove", show);
  plot.addEventListener("pointerdown", show);
}

// Pictures: a touched bar says what it is.
for (const picture of document.querySelectorAll(".picture")) {
  const output = picture.querySelector("output");
  picture.addEventListener("pointerover", (event) => {
    const bar = event.target.closest("rect");
    if (!bar) return;
    picture.querySelector(".picked")?.classList.remove("picked");
    bar.classList.add("picked");
    output.textContent = bar.querySelector("title").textContent;
  });
}
