// On the gallery's page: a click starts a row's videos together, and the CartPole is loaded.
"use strict";
for (const row of document.querySelectorAll(".motion")) row.addEventListener("click", () => {
  for (const video of row.querySelectorAll("video")) { video.currentTime = 0; video.play(); }
});
if (document.getElementById("cartpole")) for (const name of ["cartpole_weights.js", "cartpole.js"]) {
  const script = document.createElement("script");
  Object.assign(script, { src: new URL(name, document.currentScript.src).href, async: false }); // one after the other
  document.body.append(script);
}
