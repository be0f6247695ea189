function indexPage(data) {
  const {jobs, varied, splits, noun} = data, unit = noun === "member" ? "loss" : "NRMSE";
  const score = split => ({title: `${split} ${unit}`, of: job => job.scores[split]});
  const measures = [...splits.map(score), {title: "seconds", of: job => job.seconds}, {title: "steps", of: job => job.steps}];
  const keys = varied.map(key => ({title: key, of: job => job.varied[key]}));
  const titled = Object.fromEntries([...keys, ...measures].map(each => [each.title, each]));
  const values = each => jobs.map(each.of);

  function numeric(list) {
    const known = list.filter(value => value !== null && value !== "");
    return known.length > 0 && known.every(value => Number.isFinite(Number(value)));
  }

  // Positions of values along an axis, and its ticks: numbers, on a logarithmic scale where they span decades, or names.
  function scale(list) {
    if (!numeric(list)) {
      const names = [...new Set(list.filter(value => value !== null))].sort();
      return {at: value => value === null ? null : names.length > 1 ? names.indexOf(value) / (names.length - 1) : 0.5, ticks: names.map(name => [name, esc(name)])};
    }
    const known = list.filter(value => value !== null && value !== "").map(Number), low = Math.min(...known), high = Math.max(...known);
    const wide = low > 0 && high / low > 30, f = wide ? Math.log10 : x => x;
    const at = value => value === null || value === "" ? null : high > low ? (f(Number(value)) - f(low)) / (f(high) - f(low)) : 0.5;
    const unique = [...new Set(known)].sort((a, b) => a - b);
    const middle = wide ? Math.sqrt(low * high) : (low + high) / 2;
    const apart = unique.every((value, i) => !i || at(value) - at(unique[i - 1]) > 0.06);
    const ticks = apart ? unique : [low, wide ? middle : null, high].filter(value => value !== null);
    return {at, ticks: ticks.map(value => [value, value && Math.abs(value) < 1e-3 ? Number(value.toPrecision(3)).toExponential() : String(Number(value.toPrecision(3)))])};
  }

  // 0 for the best job, 1 for the worst.
  function standing(each) {
    const known = values(each).filter(value => value !== null).sort((a, b) => a - b);
    return job => each.of(job) === null ? 1 : known.length > 1 ? known.indexOf(each.of(job)) / (known.length - 1) : 0;
  }

  // The best job in full colour, the others towards grey.
  const shaded = place => mixed(colour("a"), mixed(colour("line"), colour("quiet"), 0.2), Math.min(1, place ** 0.7));

  function describe(job) {
    const words = [`<b>${noun} ${esc(job.name)}</b> ${esc(job.status)}`];
    for (const key of varied) {
      const value = job.varied[key] ?? "–";
      words.push(`${esc(key)}=${numeric([value]) ? Number(Number(value).toPrecision(4)) : esc(value)}`);
    }
    for (const split of splits) if (job.scores[split] !== null) words.push(`${split} ${unit} ${job.scores[split].toPrecision(3)}`);
    if (job.seconds !== null) words.push(`${Number(job.seconds.toPrecision(3))} s`);
    return words.join("<br>");
  }

  function parallel() {
    const chosen = titled[$("score").value] ?? measures[0], seconds = titled.seconds;
    const dimensions = [...keys, chosen, ...(chosen === seconds ? [] : [seconds])];
    const place = standing(chosen), traces = [], annotations = [], shapes = [];
    const drawn = jobs.filter(job => chosen.of(job) !== null).sort((a, b) => place(b) - place(a));
    const scales = dimensions.map(each => scale(drawn.map(each.of)));
    for (const job of drawn) {
      const y = dimensions.map((each, i) => scales[i].at(each.of(job)));
      traces.push({x: dimensions.map((_, i) => i), y, mode: "lines+markers", connectgaps: true, marker: {size: 5}, text: dimensions.map(() => describe(job)),
        hovertemplate: "%{text}<extra></extra>", line: {color: shaded(place(job)), width: place(job) === 0 ? 3 : 1.5},
        meta: job.page});
    }
    dimensions.forEach((each, i) => {
      shapes.push({type: "line", x0: i, x1: i, y0: 0, y1: 1, line: {color: colour("quiet"), width: 1}, layer: "below"});
      annotations.push({x: i, y: 1.06, text: `<b>${esc(each.title)}</b>`, showarrow: false, yanchor: "bottom", font: {size: 12}});
      for (const [value, text] of scales[i].ticks)
        annotations.push({x: i, y: scales[i].at(value), text, showarrow: false, xanchor: i ? "left" : "right", xshift: i ? 6 : -6, font: {size: 11, color: colour("quiet")},
          bgcolor: faded(colour("card"), 0.7)});
    });
    const width = Math.max($("parallel").parentElement.clientWidth, 130 * dimensions.length);
    return [traces, layout({annotations, shapes, height: 360, width, margin: {l: 10, r: 10, t: 20, b: 10}, dragmode: false,
      xaxis: {visible: false, range: [-0.5, dimensions.length - 0.4], fixedrange: true}, yaxis: {visible: false, range: [-0.06, 1.2], fixedrange: true}})];
  }

  function ruler(each) {
    const list = values(each), title = {text: esc(each.title)};
    if (!numeric(list)) return axis({title, type: "category", zeroline: false});
    const known = list.filter(value => value !== null && value !== "").map(Number);
    return positive(known) && Math.max(...known) / Math.min(...known) > 30 ? logarithmic(known, {title}) : axis({title, zeroline: false});
  }

  function scatter() {
    const [x, y] = [titled[$("across").value], titled[$("up").value]], place = standing(measures[0]);
    const drawn = jobs.filter(job => x.of(job) !== null && y.of(job) !== null);
    return [[{x: drawn.map(x.of), y: drawn.map(y.of), mode: "markers", text: drawn.map(describe), customdata: drawn.map(job => job.page),
      hovertemplate: "%{text}<extra></extra>", marker: {size: 10, color: drawn.map(job => shaded(place(job))),
        line: {width: 1, color: colour("card")}}}], layout({height: 380, xaxis: ruler(x), yaxis: ruler(y)})];
  }

  function curves() {
    const kind = $("kind").value, against = $("against").value, place = standing(measures[0]);
    const drawn = jobs.filter(job => job.curve && job.curve[kind].some(value => value > 0)).sort((a, b) => place(b) - place(a));
    const traces = drawn.map(job => ({x: job.curve[against], y: job.curve[kind].map(value => value > 0 ? value : null), customdata: job.curve.step.map(() => job.page),
      mode: job.curve.step.length > 1 ? "lines" : "markers", text: job.curve.step.map(() => describe(job)), hovertemplate: "%{y:.3g}<br>%{text}<extra></extra>",
      line: {color: shaded(place(job)), width: place(job) === 0 ? 2.6 : 1.4}}));
    return [traces, layout({height: 360, xaxis: steps(traces.flatMap(trace => trace.x), {title: {text: against}}), yaxis: logarithmic(traces.flatMap(trace => trace.y), {title: {text: `${kind} loss`}})})];
  }

  function sortable(table) {
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      cell.classList.add("sorts");
      cell.tabIndex = 0;
      const sort = () => {
        const up = cell.getAttribute("aria-sort") !== "ascending", rows = [...table.tBodies[0].rows];
        const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
        const numbers = numeric(rows.map(value));
        rows.sort((a, b) => {
          const [p, q] = [value(a), value(b)];
          if (p === "" || q === "") return (p === "") - (q === "");  // what is missing comes last
          return (numbers ? p - q : p.localeCompare(q)) * (up ? 1 : -1);
        });
        [...table.tHead.rows[0].cells].forEach(each => each.removeAttribute("aria-sort"));
        cell.setAttribute("aria-sort", up ? "ascending" : "descending");
        table.tBodies[0].append(...rows);
      };
      cell.addEventListener("click", sort);
      cell.addEventListener("keydown", event => event.key === "Enter" && sort());
    });
  }

  function offer(id, names, chosen, draw) {
    if (!$(id)) return;
    for (const name of names) $(id).append(option(name, name));
    if (chosen) $(id).value = chosen;
    $(id).addEventListener("change", draw);
  }

  const opens = id => $(id).on("plotly_click", ({points: [point]}) => point.customdata && open(point.customdata.split("/").map(encodeURIComponent).join("/")));

  sortable($("table"));
  if ($("scatter")) {
    offer("score", measures.map(each => each.title), measures[0].title, () => show("parallel", parallel, MONO));
    offer("across", [...keys, ...measures].map(each => each.title), keys[0]?.title ?? "seconds", () => show("scatter", scatter));
    offer("up", measures.map(each => each.title), measures[0].title, () => show("scatter", scatter));
    show("parallel", parallel, MONO);
    show("scatter", scatter);
    opens("scatter");
  }
  const held = jobs.some(job => job.curve?.validation.some(value => value !== null));
  offer("kind", held ? ["validation", "train"] : ["train"], null, () => show("curves", curves));
  $("against").addEventListener("change", () => show("curves", curves));
  show("curves", curves);
  opens("curves");
}

begin(indexPage);
