// Sorting and filtering of the failed rows, and a line that moves through the pictures while a clip plays.
"use strict";

function failedRows(table) {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const text = document.getElementById("filter");
  const kind = document.getElementById("kind");
  const count = document.getElementById("count");
  const haystacks = rows.map((row) => (row.cells[0].textContent + "\n" + row.cells[2].textContent).toLowerCase());

  function filter() {
    const needle = text.value.trim().toLowerCase();
    let shown = 0;
    rows.forEach((row, i) => {
      const fits = haystacks[i].includes(needle) && (!kind.value || row.dataset.kind === kind.value);
      row.hidden = !fits;
      shown += fits;
    });
    const all = rows.length + (rows.length === 1 ? " row" : " rows");
    count.value = shown === rows.length ? all : shown + " of " + all;
  }

  const order = new Intl.Collator(undefined, { numeric: true });
  function sort(head) {
    const column = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending";
    const sorted = rows.slice().sort((a, b) => {
      const by = order.compare(a.cells[column].textContent, b.cells[column].textContent);
      return down ? -by : by;
    });
    Array.from(head.parentNode.cells).forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...sorted);
  }

  text.addEventListener("input", filter);
  kind.addEventListener("change", filter);
  table.tHead.querySelectorAll("button").forEach((button) => button.addEventListener("click", () => sort(button.parentNode)));
  filter();
}

function player(clip) {
  const sounds = Array.from(clip.querySelectorAll("audio"));
  sounds.forEach((sound) => {
    const pictures = [sound.parentNode.querySelector(".picture"), clip.querySelector(".picture.codes")];
    const heads = pictures.map((picture) => picture.querySelector(".head"));
    function move() {
      const share = sound.duration > 0 ? sound.currentTime / sound.duration : 0;
      heads.forEach((head) => {
        head.style.left = 100 * share + "%";
        head.classList.toggle("on", share > 0 && !sound.ended);
      });
      if (!sound.paused) requestAnimationFrame(move);
    }
    sound.addEventListener("play", () => {
      document.querySelectorAll("audio").forEach((other) => other !== sound && other.pause());
      move();
    });
    ["seeked", "pause", "ended"].forEach((name) => sound.addEventListener(name, move));
    pictures[0].classList.add("seek");
    pictures[0].addEventListener("click", (event) => {
      const box = pictures[0].getBoundingClientRect();
      sound.currentTime = sound.duration * Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      sound.play().catch(() => {}); // interrupted by another click
    });
  });
}

const table = document.getElementById("failed");
if (table) failedRows(table);
document.querySelectorAll(".clip").forEach(player);
