// A click starts a row's videos together; the gallery's CartPole is loaded; a strip doesn't move for who wants no motion.
"use strict";
if (matchMedia("(prefers-reduced-motion: reduce)").matches)
  for (const video of document.querySelectorAll("video[autoplay]")) video.autoplay = false;
for (const row of document.querySelectorAll(".motion")) row.addEventListener("click", () => {
  for (const video of row.querySelectorAll("video")) { video.currentTime = 0; video.play(); }
});
if (document.getElementById("cartpole")) for (const name of ["cartpole_weights.js", "cartpole.js"]) {
  const script = document.createElement("script");
  Object.assign(script, { src: new URL(name, document.currentScript.src).href, async: false }); // one after the other
  document.body.append(script);
}
