// Editing the whole translation as text. What is typed goes to the sentence at that place, so that the others keep their words.

// The smallest replacement that turns one text into the other: the characters from `start` to before `end` become `inserted`.
export function difference(old, text) {
  const shorter = Math.min(old.length, text.length);
  let start = 0, same = 0;
  while (start < shorter && old[start] === text[start]) start += 1;
  while (same < shorter - start && old[old.length - 1 - same] === text[text.length - 1 - same]) same += 1;
  return { start, end: old.length - same, inserted: text.slice(start, text.length - same) };
}

// Applies a replacement to a text in parts: gaps at even indices, sentences at odd ones. What is inserted at a sentence's border
// belongs to the sentence.
export function editParts(parts, { start, end, inserted }) {
  const begins = [];
  parts.reduce((sum, part) => { begins.push(sum); return sum + part.length; }, 0);
  const isAt = (i) => begins[i] <= start && start <= begins[i] + parts[i].length;
  const indices = [...parts.keys()];
  const owner = indices.find((i) => i % 2 && isAt(i)) ?? indices.find(isAt);
  return parts.map((part, i) => part.slice(0, Math.max(0, start - begins[i])) + (i === owner ? inserted : "") + part.slice(Math.max(0, end - begins[i])));
}

// `area` is the field, `button` switches to it and back, `out` is shown otherwise. `parts()` returns the translation in parts,
// `onEdit(parts)` is called with every change, `onToggle()` when the field appears or disappears, which must call `show`.
export function startEditing({ area, button, out, parts, onEdit, onToggle }) {
  let isEditing = false;

  function show() {
    area.hidden = !isEditing;
    out.hidden = isEditing;
    button.textContent = isEditing ? "Done" : "Edit";
    button.classList.toggle("on", isEditing);
    const text = parts().join("");
    if (area.value !== text) area.value = text;
    grow(area);
  }

  function toggle() {
    if (button.hidden) return;
    isEditing = !isEditing;
    onToggle();
    if (isEditing) area.focus(); else button.focus();
  }

  area.addEventListener("input", () => {
    const old = parts();
    onEdit(editParts(old, difference(old.join(""), area.value)));
    grow(area);
  });
  area.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); toggle(); } });
  button.addEventListener("click", toggle);
  return { show, toggle, isOn: () => isEditing, stop() { isEditing = false; } };
}

// Fits a field to its text in browsers without field-sizing.
export function grow(area) {
  if (CSS.supports("field-sizing", "content")) return;
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}
