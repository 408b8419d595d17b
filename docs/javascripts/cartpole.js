// A CartPole that plays in the page with the weights of CARTPOLE (cartpole_weights.js). The dynamics are those of
// gymnasium's CartPole-v1 (Barto, Sutton and Anderson 1983); tests/test_gallery.py compares the two.
"use strict";
const cartpole = (() => {
  const GRAVITY = 9.8, POLE_MASS = 0.1, MASS = 1.1, HALF_LENGTH = 0.5, FORCE = 10, SECONDS = 0.02; // MASS: cart and pole
  const FARTHEST = 2.4, STEEPEST = (12 * 2 * Math.PI) / 360, LONGEST = 500;

  // One step of 0.02 s under a force on the cart, in newtons. A state: position, velocity, angle, angular velocity.
  function step([x, velocity, angle, spin], force) {
    const cos = Math.cos(angle), sin = Math.sin(angle);
    const pushed = (force + POLE_MASS * HALF_LENGTH * spin * spin * sin) / MASS;
    const turning = (GRAVITY * sin - cos * pushed) / (HALF_LENGTH * (4 / 3 - (POLE_MASS * cos * cos) / MASS));
    const acceleration = pushed - (POLE_MASS * HALF_LENGTH * turning * cos) / MASS;
    return [x + SECONDS * velocity, velocity + SECONDS * acceleration, angle + SECONDS * spin, spin + SECONDS * turning];
  }
  const fallen = ([x, , angle]) => Math.abs(x) > FARTHEST || Math.abs(angle) > STEEPEST;

  // A checkpoint's actor and critic, as functions of a state: tanh after every layer but the last
  function networks(checkpoint) {
    const bytes = Uint8Array.from(atob(CARTPOLE.weights[checkpoint]), (letter) => letter.charCodeAt(0));
    const numbers = new Float32Array(bytes.buffer);
    let at = 0;
    const take = (count) => numbers.subarray(at, (at += count));
    const network = (sizes) => {
      const layers = sizes.slice(1).map((outputs, i) => [take(outputs * sizes[i]), take(outputs)]);
      return (input) => layers.reduce((values, [weight, bias], i) => Array.from(bias, (sum, row) => {
        for (let k = 0; k < values.length; k++) sum += weight[row * values.length + k] * values[k];
        return i < layers.length - 1 ? Math.tanh(sum) : sum;
      }), input);
    };
    return { actor: network(CARTPOLE.sizes.actor), critic: network(CARTPOLE.sizes.critic) };
  }

  // Probabilities of a push to the left and to the right, and the value, at a state
  function policy({ actor, critic }, state) {
    const logits = actor(state), highest = Math.max(...logits);
    const exponentials = logits.map((logit) => Math.exp(logit - highest));
    const sum = exponentials.reduce((a, b) => a + b);
    return { probabilities: exponentials.map((x) => x / sum), value: critic(state)[0] };
  }

  // ------------------------------------------------------------------------------------------------ What the page shows
  function show(place) {
    place.innerHTML = `<canvas width="1200" height="420" role="img" aria-label="cart and pole"></canvas>
      <div class="cartpole-row"><label>weights <input type="range" min="0" max="${CARTPOLE.steps.length - 1}"></label>
        <output></output></div>
      <div class="cartpole-row"><button data-push="-1">← push</button><button data-push="1">push →</button>
        <button class="play"></button><span class="cartpole-read"></span></div>
      <div class="cartpole-row cartpole-bars"><span>left</span><meter></meter><b></b><span>right</span><meter></meter><b></b>
        <span>value</span><meter max="100"></meter><b></b></div>`;
    const find = (selector) => place.querySelector(selector), all = (selector) => [...place.querySelectorAll(selector)];
    const canvas = find("canvas"), slider = find("input"), play = find(".play"), pen = canvas.getContext("2d");
    let agent, state, steps, waiting, running, before = 0, owed = 0;
    const ended = [], pushes = new Set(); // lengths of episodes with these weights; pushes that are held now

    const random = () => Array.from({ length: 4 }, () => Math.random() * 0.1 - 0.05);
    function reset() { state = random(); steps = 0; waiting = 0; }
    function choose() {
      agent = networks(+slider.value);
      find("output").textContent = `after ${CARTPOLE.steps[slider.value].toLocaleString("en")} steps of training`;
      ended.length = 0;
      reset();
    }
    function advance() {
      if (waiting > 0) return --waiting || reset(); // a second on the floor, then a new episode
      const right = Math.random() < policy(agent, state).probabilities[1];
      state = step(state, (right ? FORCE : -FORCE) + FORCE * [...pushes].reduce((sum, push) => sum + push, 0));
      steps += 1;
      if (fallen(state) || steps === LONGEST) { waiting = 50; ended.push(steps); }
    }
    function draw() {
      const scale = canvas.width / (2 * FARTHEST + 0.6), ground = 330, [x, , angle] = state;
      const { probabilities, value } = policy(agent, state), middle = canvas.width / 2 + x * scale;
      const line = (width, colour, ...points) => {
        pen.beginPath();
        points.forEach((point) => pen.lineTo(...point));
        Object.assign(pen, { lineWidth: width, strokeStyle: colour, lineCap: "round" }).stroke();
      };
      pen.clearRect(0, 0, canvas.width, canvas.height);
      const ink = getComputedStyle(canvas).color;
      line(3, ink, [0, ground], [canvas.width, ground]);
      for (const side of [-1, 1]) {
        const end = canvas.width / 2 + side * FARTHEST * scale;
        line(3, ink, [end, ground - 18], [end, ground + 18]);
      }
      for (const push of pushes) line(10, "#e53935", [middle - push * 150, ground - 27], [middle - push * 75, ground - 27]);
      pen.fillStyle = ink;
      pen.fillRect(middle - 60, ground - 54, 120, 54);
      line(20, "#e07b00", [middle, ground - 50], [middle + Math.sin(angle) * 260, ground - 50 - Math.cos(angle) * 260]);
      const texts = all(".cartpole-bars b");
      all(".cartpole-bars meter").forEach((meter, i) => { meter.value = [...probabilities, Math.max(value, 0)][i]; });
      probabilities.forEach((p, i) => { texts[i].textContent = p.toFixed(2); });
      texts[2].textContent = value.toFixed(1);
      find(".cartpole-read").textContent = `step ${steps} of ${LONGEST}` +
        (ended.length ? `; episodes so far: ${ended.slice(-6).join(", ")}` : "");
    }
    function frame(now) {
      owed = Math.min(owed + (now - before) / 1000, 0.1); // of a page that was hidden, no more than this is made up for
      before = now;
      for (; owed >= SECONDS; owed -= SECONDS) advance();
      draw();
      if (running) requestAnimationFrame(frame);
    }
    function run(on) {
      running = on;
      play.textContent = on ? "pause" : "play";
      if (on) requestAnimationFrame((now) => { before = now; frame(now); });
    }
    slider.value = CARTPOLE.steps.length - 1;
    slider.addEventListener("input", () => { choose(); draw(); });
    slider.addEventListener("pointerup", () => slider.blur()); // from then on the arrow keys push the cart
    play.addEventListener("click", () => run(!running));
    for (const button of all("[data-push]")) {
      button.addEventListener("pointerdown", () => pushes.add(+button.dataset.push));
      for (const up of ["pointerup", "pointerleave", "pointercancel"]) {
        button.addEventListener(up, () => pushes.delete(+button.dataset.push));
      }
    }
    const KEYS = { ArrowLeft: -1, ArrowRight: 1 };
    addEventListener("keydown", ({ key, target }) => { if (KEYS[key] && target.type !== "range") pushes.add(KEYS[key]); });
    addEventListener("keyup", ({ key }) => pushes.delete(KEYS[key]));
    addEventListener("blur", () => pushes.clear());
    choose();
    draw();
    run(!matchMedia("(prefers-reduced-motion: reduce)").matches);
  }
  for (const place of document.querySelectorAll("#cartpole")) show(place);
  return { step, networks, policy, fallen };
})();
