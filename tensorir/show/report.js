for (const part of document.querySelectorAll("section")) {
  const field = part.querySelector(".tir-search"), count = part.querySelector(".tir-count");
  const rows = [...part.querySelectorAll("tr[data-t]")];
  const texts = rows.map(r => [...r.cells].map(c => c.textContent).join(" ").toLowerCase());
  const tokens = texts.map(t => new Set(t.split(/\s+/)));
  const fits = n => word => word.includes("=") ? tokens[n].has(word) : texts[n].includes(word);
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(w => w);
    rows.forEach((r, n) => { r.hidden = !words.every(fits(n)); });
    count.textContent = words.length ? `${rows.filter(r => !r.hidden).length} of ${rows.length}` : "";
  };
  const hot = (e, on) => {
    const at = e.target.closest("[data-t]");
    if (at) part.querySelectorAll(`[data-t="${at.dataset.t}"]`).forEach(x => x.classList.toggle("tir-hot", on));
  };
  part.addEventListener("mouseover", e => hot(e, true));
  part.addEventListener("mouseout", e => hot(e, false));
  part.addEventListener("click", e => {
    const at = e.target.closest("svg [data-t]"), row = at && part.querySelector(`tr[data-t="${at.dataset.t}"]`);
    if (row) { row.hidden = false; row.scrollIntoView({ block: "nearest" }); }
  });
  if (!field) continue;
  field.hidden = false;
  const asked = (location.hash.match(/^#q=(.*)/) || ["", ""])[1];
  try { field.value = decodeURIComponent(asked); } catch { field.value = asked; }
  field.addEventListener("input", filter);
  filter();
}
