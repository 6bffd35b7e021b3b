// Filters of the answers. Without it everything is shown.
document.documentElement.classList.add("js");
for (const box of document.querySelectorAll("[data-filters]")) {
  const problems = [...document.querySelectorAll("#" + box.dataset.filters + " > details")];
  const fields = [...box.querySelectorAll("[data-by]")];
  const shown = box.querySelector(".shown");
  const fits = (problem, field) => {
    const wanted = field.value.trim().toLowerCase();
    if (!wanted) return true;
    if (field.dataset.by === "text") return problem.textContent.toLowerCase().includes(wanted);
    return problem.getAttribute("data-" + field.dataset.by).split("|").includes(field.value);
  };
  const apply = () => {
    let count = 0;
    for (const problem of problems) {
      problem.hidden = !fields.every((field) => fits(problem, field));
      count += !problem.hidden;
    }
    shown.textContent = count + " of " + problems.length + " shown";
  };
  for (const field of fields) field.addEventListener("input", apply);
  apply();
}
