// A click starts a row's videos together; a strip doesn't move for who wants no motion; what one can play with is loaded.
"use strict";
if (matchMedia("(prefers-reduced-motion: reduce)").matches)
  for (const video of document.querySelectorAll("video[autoplay]")) video.autoplay = false;
for (const row of document.querySelectorAll(".motion")) row.addEventListener("click", () => {
  for (const video of row.querySelectorAll("video")) { video.currentTime = 0; video.play(); }
});
for (const [place, names] of [["#cartpole", ["cartpole_weights.js", "cartpole.js"]], [".clip", ["clip.js"]]]) {
  if (document.querySelector(place)) for (const name of names) {
    const script = document.createElement("script");
    Object.assign(script, { src: new URL(name, document.currentScript.src).href, async: false }); // one after the other
    document.body.append(script);
  }
}
