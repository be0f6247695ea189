"use strict";
// The page of node-fit app: it asks the server, and shows what it says. What it shows is in the address after #.

const ROLES = ["state", "input", "covariate", "repeat", "time", "time of day", "trajectory", "left out"];
let table = null, run = null, losses = [], player = null, given = {}, timer = 0, asked = 0, waiting = false;

async function ask(path, body, raw) {
  const answer = await fetch(path, body === undefined ? {} : {method: "POST", body: raw ? body : JSON.stringify(body)});
  const text = await answer.text();
  let found;
  try { found = JSON.parse(text); } catch { found = {error: text}; }
  if (!answer.ok) throw new Error(found.error || `the server answered ${answer.status}`);
  return found;
}

function tell(error) {
  $("message").hidden = !error;
  $("message").textContent = error ? (error.message === "Failed to fetch" ? "the server does not answer; start node-fit app again." : error.message) : "";
}

const attempt = action => async (...words) => { try { tell(null); return await action(...words); } catch (error) { tell(error); } };

function make(tag, text, more = {}) {
  const made = Object.assign(document.createElement(tag), more);
  if (text !== undefined) made.textContent = text;
  return made;
}

function spark(values) {
  const known = values.filter(value => value !== null), low = Math.min(...known), high = Math.max(...known);
  const box = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS(box.namespaceURI, "path");
  box.setAttribute("viewBox", "0 0 120 34");
  box.classList.add("spark");
  let pen = "M";
  path.setAttribute("d", values.map((value, i) => {
    if (value === null) { pen = "M"; return ""; }
    const point = `${pen}${(118 * i / Math.max(values.length - 1, 1) + 1).toFixed(1)} ${(32 - 30 * (value - low) / (high - low || 1)).toFixed(1)}`;
    pen = "L";
    return point;
  }).join(""));
  box.append(path);
  return box;
}

// Tables and their columns.

async function refresh() {
  const state = await ask("api/state");
  $("where").textContent = `${state.folder} · ${state.version}`;
  $("tables").replaceChildren(option("", "tables here …"), ...state.tables.map(each => option(each.id, each.name)));
  $("runs").replaceChildren(option("", "runs here …"), ...state.runs.map(each => option(each.id, `${each.id.replace("_", " ")} ${each.data} ${each.status}`)));
  $("tables").value = table?.id ?? "";
  $("runs").value = run?.id ?? "";
  $("exports").replaceChildren(...state.targets.map(target => make("button", `model as ${target}`, {onclick: attempt(() => takeAway(target)), id: `export-${target}`})));
  return state;
}

async function drop(file) {
  const state = await ask("api/state");
  if (file.size > state.most_upload) throw new Error(`${file.name} has more than ${state.most_upload / 1e6} MB; use the command node-fit for it.`);
  const {id} = await ask(`api/tables?name=${encodeURIComponent(file.name)}`, file, true);
  await openTable(id);
  await refresh();
}

async function openTable(id) {
  table = await ask(`api/tables/${id}/look`, {});
  table.edited = false;
  showTable();
  remember();
}

function roleOf(name) {
  const roles = table.roles;
  if (!roles) return "left out";
  const single = [["time", "time"], ["time_of_day", "time of day"], ["trajectory", "trajectory"]].find(([key]) => roles[key] === name);
  if (single) return single[1];
  const listed = [["states", "state"], ["inputs", "input"], ["covariates", "covariate"], ["series", "repeat"]].find(([key]) => roles[key]?.includes(name));
  if (listed) return listed[1];
  const of = Object.entries(roles.sigma).find(([, column]) => column === name);
  return of ? `sd of ${of[0]}` : "left out";
}

function showTable() {
  const names = table.columns.map(column => column.name), head = make("tr"), kinds = make("tr"), roles = make("tr"), pictures = make("tr");
  for (const column of table.columns) {
    head.append(make("th", column.name));
    kinds.append(make("td", [column.kind, table.units[column.name]].filter(Boolean).join(", "), {className: "quiet"}));
    const choice = make("select", undefined, {onchange: attempt(changeRoles)}), role = roleOf(column.name);
    const others = (table.roles?.states ?? []).filter(name => name !== column.name).map(name => `sd of ${name}`);
    choice.append(...[...ROLES, ...new Set([...others, role])].filter((each, i, all) => all.indexOf(each) === i).map(each => option(each, each)));
    choice.value = role;
    choice.dataset.column = column.name;
    roles.append(make("td"));
    roles.lastChild.append(choice);
    pictures.append(make("td"));
    if (column.values.length) pictures.lastChild.append(spark(column.values));
  }
  const rows = table.columns[0].first.map((_, i) => { const row = make("tr"); row.append(...table.columns.map(column => make("td", column.first[i]))); return row; });
  $("preview").replaceChildren(head, roles, kinds, pictures, ...rows);
  $("said").textContent = [`${table.name}: ${table.rows} rows, ${names.length} columns`, ...new Set([...table.recognised, ...(table.data?.notes ?? [])])].join("; ");
  $("likely").replaceChildren(...Object.entries(table.likely_inputs).map(([name, why]) => {
    const line = make("p", `${name} ${why}, like an input. `);
    line.append(make("button", "take it as an input", {onclick: attempt(() => { document.querySelector(`#preview select[data-column="${CSS.escape(name)}"]`).value = "input"; return changeRoles(); })}));
    return line;
  }));
  $("unreadable").hidden = !table.error;
  $("unreadable").textContent = table.error ?? "";
  $("columns").hidden = $("fitting").hidden = false;
  $("fit").disabled = Boolean(table.error);
  drawData();
  attempt(showCommand)();
}

async function changeRoles() {
  const roles = {time: null, time_of_day: null, trajectory: null, states: [], inputs: [], covariates: [], series: [], sigma: {}};
  for (const choice of document.querySelectorAll("#preview select")) {
    const name = choice.dataset.column, role = choice.value;
    if (role === "state") roles.states.push(name);
    else if (role === "input") roles.inputs.push(name);
    else if (role === "covariate") roles.covariates.push(name);
    else if (role === "repeat") roles.series.push(name);
    else if (role === "time of day") roles.time_of_day = name;
    else if (role === "time" || role === "trajectory") roles[role] = name;
    else if (role.startsWith("sd of ")) roles.sigma[role.slice(6)] = name;
  }
  table = {...await ask(`api/tables/${table.id}/look`, {roles}), edited: true};
  showTable();
}

function drawData() {
  const data = table.data;
  $("data").hidden = !data;
  if (!data) return;
  const channels = [...data.states, ...data.inputs];
  $("data").style.height = `${Math.min(140 * channels.length + 40, 900)}px`;
  show("data", () => [
    data.records.flatMap((record, r) => channels.map((name, i) => ({x: record.ts, y: i < data.states.length ? record.ys[i] : record.us[i - data.states.length], yaxis: i ? `y${i + 1}` : "y", type: "scatter", mode: i < data.states.length ? "markers" : "lines", marker: {size: 4}, line: {shape: "hv"}, name: esc(`${record.name} ${name}`), line_color: accent(r), marker_color: accent(r)}))).map(({line_color, marker_color, ...trace}) => ({...trace, line: {...trace.line, color: line_color}, marker: {...trace.marker, color: marker_color}})),
    layout({grid: {rows: channels.length, columns: 1, roworder: "top to bottom"}, ...stacked(channels, data)}),
  ]);
}

function stacked(channels, data) {
  const height = 1 / channels.length, axes = {xaxis: axis({title: {text: esc(data.time)}, anchor: `y${channels.length > 1 ? channels.length : ""}`})};
  channels.forEach((name, i) => { axes[`yaxis${i ? i + 1 : ""}`] = axis({title: {text: esc(data.units?.[name] ? `${name} [${data.units[name]}]` : name)}, domain: [1 - (i + 1) * height + 0.03 * (channels.length > 1), 1 - i * height], nticks: 4}); });
  return axes;
}

// The fit.

function wish() {
  const options = {field: $("field").value, effort: $("effort").value, precision: $("precision").value};
  if ($("effort").value === "normal") delete options.effort;
  if ($("precision").value === "x32") delete options.precision;
  if ($("steps").value) options["training.steps"] = Number($("steps").value);
  if ($("hidden").value) options.hidden = Number($("hidden").value);
  if ($("split").value) options["data.split.by"] = $("split").value;
  if (options.field === "known") Object.assign(options, {equations: $("equations").value, constants: $("constants").value});
  return {table: table.id, roles: table.edited ? table.roles : null, options};
}

async function showCommand() {
  $("known").hidden = $("field").value !== "known";
  if (table) $("command").textContent = (await ask("api/command", wish())).command;
}

async function begin() {
  $("fit").disabled = true;
  try { await openRun((await ask("api/runs", wish())).id); } finally { $("fit").disabled = Boolean(table.error); }
  $("run").scrollIntoView({behavior: "smooth"});
}

async function openRun(id) {
  clearTimeout(timer);
  losses = [];
  player = null;
  run = {id};
  $("play").hidden = $("take").hidden = true;
  $("pictures").replaceChildren();
  remember();
  await watch();
}

async function watch() {
  const id = run.id, found = await ask(`api/runs/${id}?since=${losses.length}`);
  if (run.id !== id) return;
  const ended = run.status === "running" && found.status !== "running";
  if (found.rows < losses.length) losses = [];
  losses.push(...found.losses);
  run = found;
  showRun();
  if (found.status === "running") timer = setTimeout(() => attempt(watch)().then(() => {}), 1000);
  else if (!player) await loadPlayer();
  if (ended) refresh();
}

function showRun() {
  $("run").hidden = false;
  $("name").textContent = run.id.replace("_", " ");
  $("status").textContent = run.kind ?? run.status;
  $("status").className = `kind ${run.kind ?? run.status}`;
  $("sentence").textContent = run.sentence;
  $("stop").disabled = run.status !== "running";
  $("resume").disabled = !run.can_resume;
  const end = $("printed").scrollTop + $("printed").clientHeight >= $("printed").scrollHeight - 20;
  $("printed").textContent = run.printed;
  if (end) $("printed").scrollTop = $("printed").scrollHeight;
  const x = losses.map(row => row[0]), y = [1, 2].flatMap(place => losses.map(row => row[place]));
  show("loss", () => [
    [["training", 1, "a"], ["validation", 2, "b"]].filter(([, place]) => losses.some(row => row[place] !== null)).map(([name, place, hue]) => ({x, y: losses.map(row => row[place]), name, type: "scatter", mode: losses.length < 3 ? "markers" : "lines", line: {color: colour(hue)}, marker: {color: colour(hue)}})),
    layout({showlegend: true, xaxis: axis({title: {text: "step"}}), yaxis: logarithmic(y)}),
  ], MONO);
  for (const {name, version} of run.pictures) {
    const id = `picture-${name}`, source = `api/runs/${run.id}/pictures/${encodeURIComponent(name)}?v=${version}`;
    const picture = $(id) ?? $("pictures").appendChild(make("img", undefined, {id, alt: name, loading: "lazy"}));
    if (picture.getAttribute("src") !== source) picture.setAttribute("src", source);
  }
  $("equation").replaceChildren(...Object.entries(run.equations).map(([state, text]) => make("pre", `d${state}/dt = ${text}`)));
  $("take").hidden = !run.files.includes("model");
  const links = run.files.map(word => make("a", word, {href: `api/runs/${run.id}/files/${word}`}));
  if (run.report) links.unshift(make("a", "report", {href: run.report, target: "_blank", rel: "noopener noreferrer"}));
  links.push(...run.pictures.map(({name}) => make("a", name, {href: `api/runs/${run.id}/pictures/${encodeURIComponent(name)}`, download: name})));
  $("links").replaceChildren(...links);
  $("repeat").textContent = run.command;
}

async function takeAway(target) {
  $("exported").textContent = `writing ${target}, and checking that it predicts the same …`;
  try {
    const made = await ask(`api/runs/${run.id}/exports/${target}`, {});
    $("exported").textContent = `${made.said} ${made.command}`;
    make("a", "", {href: made.file, download: `model_${target}.zip`}).click();
  } catch (error) { $("exported").textContent = ""; throw error; }
}

// The model to play with.

async function loadPlayer() {
  // A run that was stopped while it was scored has a model, but no records to begin with.
  if (!run.files.includes("model") || !run.files.includes("predictions")) return;
  $("play").hidden = false;
  $("playing").textContent = "loading the model …";
  const id = run.id;
  try {
    const loaded = await ask(`api/runs/${id}/play`);
    if (run.id !== id) return;  // Another run was opened meanwhile.
    player = {...loaded, id};
  } catch (error) {
    if (run.id === id) $("playing").textContent = error.message;
    return;
  }
  $("trajectory").replaceChildren(...player.trajectories.map((each, i) => option(i, each.name)));
  restart();
}

function restart() {
  given = {trajectory: Number($("trajectory").value), constants: {}, start: {}, inputs: {}};
  const record = player.trajectories[given.trajectory];
  $("until").value = record.span[1];
  $("sliders").replaceChildren(...(player.constants.length ? [make("h3", "constants")] : []), ...player.constants.map(each => slider(each.name, each.value, each.range, value => { given.constants[each.name] = value; })));
  $("starts").replaceChildren(...(player.latent.length ? [make("h3", "starts")] : []), ...player.latent.map((name, i) => slider(name, record.start[i], player.reach[i], value => { given.start[name] = value; })));
  $("inputs").replaceChildren(...(player.inputs.length ? [make("h3", "inputs")] : []), ...player.inputs.map(wave));
  move();
}

function slider(name, value, [low, high], set) {
  const row = make("label", undefined, {className: "slider"}), shown = make("output", Number(value).toPrecision(4));
  const bar = make("input", undefined, {type: "range", min: low, max: high, step: "any"});
  bar.value = value;
  bar.dataset.name = name;
  bar.oninput = () => { shown.textContent = Number(bar.value).toPrecision(4); set(Number(bar.value)); move(); };
  row.append(make("span", name), bar, shown);
  return row;
}

function wave(name) {
  const box = make("div"), kind = make("select"), fields = make("span", undefined, {className: "fields"}), record = player.trajectories[given.trajectory];
  kind.dataset.input = name;
  kind.append(...["measured", "constant", "step", "sine"].map(each => option(each, each)));
  const middle = (record.span[0] + record.span[1]) / 2, first = {value: 1, before: 0, at: middle, amplitude: 1, period: (record.span[1] - record.span[0]) / 4};
  kind.onchange = () => {
    const keys = {measured: [], constant: ["value"], step: ["before", "value", "at"], sine: ["value", "amplitude", "period"]}[kind.value];
    given.inputs[name] = {kind: kind.value, ...Object.fromEntries(keys.map(key => [key, first[key]]))};
    if (kind.value === "measured") delete given.inputs[name];
    fields.replaceChildren(...keys.map(key => { const label = make("label", `${key} `), number = make("input", undefined, {type: "number", step: "any", value: first[key]}); number.oninput = () => { if (number.value !== "") { given.inputs[name][key] = Number(number.value); move(); } }; label.append(number); return label; }));
    move();
  };
  box.append(make("span", `${name} `), kind, fields);
  return box;
}

// One simulation at a time; the last position of a slider is the one that is shown.
async function move() {
  asked += 1;
  if (waiting) return;
  waiting = true;
  try {
    for (let now = 0; now !== asked && player;) {
      now = asked;
      // What is given belongs to the player, which may be another run's when the answer comes.
      const own = player, found = await ask(`api/runs/${own.id}/play`, {...given, until: Number($("until").value)});
      if (own !== player) continue;
      drawCurve(found);
      $("play").dataset.drawn = now;
      tell(null);
    }
  } catch (error) { tell(error); } finally { waiting = false; }
}

function drawCurve(found) {
  // Another run may be opened before this picture is drawn again, for a window of another width.
  const shown = player, channels = [...shown.states, ...shown.inputs], count = shown.states.length;
  $("curve").style.height = `${Math.min(200 * channels.length + 40, 900)}px`;
  $("playing").textContent = found.nrmse === null ? "A simulation of your own." : `NRMSE of this curve ${found.nrmse.toPrecision(3)}, in standard deviations of what was measured.`;
  show("curve", () => [
    channels.flatMap((name, i) => {
      const yaxis = i ? `y${i + 1}` : "y";
      if (i >= count) return [{x: found.input_ts, y: found.us[i - count], yaxis, type: "scatter", mode: "lines", line: {color: colour("quiet"), shape: found.held[i - count] ? "hv" : "linear"}, name: esc(name)}];
      return [
        {x: found.measured.ts, y: found.measured.ys[i], yaxis, type: "scatter", mode: "markers", marker: {color: colour("quiet"), size: 4}, name: `${esc(name)} measured`},
        {x: found.ts, y: found.ys[i], yaxis, type: "scatter", mode: "lines", line: {color: accent(i), width: 2}, name: esc(name)},
      ];
    }),
    layout(stacked(channels, shown)),
  ]);
}

// What is shown, in the address, so that a reload and a second window show it, too.

function remember() {
  history.replaceState(null, "", `#${new URLSearchParams({...(table ? {table: table.id} : {}), ...(run ? {run: run.id} : {})})}`);
}

async function open() {
  const state = await refresh(), before = new URLSearchParams(location.hash.slice(1));
  const shown = before.get("run") ?? state.running;
  if (before.get("table")) await attempt(openTable)(before.get("table"));
  if (shown) await attempt(openRun)(shown);
  document.body.dataset.ready = "true";
}

$("file").onchange = attempt(async () => { if ($("file").files[0]) await drop($("file").files[0]); $("file").value = ""; });
$("drop").ondragover = event => { event.preventDefault(); $("drop").classList.add("over"); };
$("drop").ondragleave = () => $("drop").classList.remove("over");
$("drop").ondrop = attempt(async event => { event.preventDefault(); $("drop").classList.remove("over"); if (event.dataTransfer.files[0]) await drop(event.dataTransfer.files[0]); });
$("tables").onchange = attempt(async () => { if ($("tables").value) await openTable($("tables").value); });
$("runs").onchange = attempt(async () => { if ($("runs").value) await openRun($("runs").value); });
for (const id of ["field", "effort", "steps", "hidden", "precision", "split", "equations", "constants"]) $(id).onchange = attempt(showCommand);
$("fit").onclick = attempt(begin);
$("stop").onclick = attempt(async () => { await ask(`api/runs/${run.id}/stop`, {}); });
$("resume").onclick = attempt(async () => { await ask(`api/runs/${run.id}/resume`, {}); await openRun(run.id); });
$("trajectory").onchange = restart;
$("until").onchange = move;
$("reset").onclick = restart;
dark.addEventListener("change", () => drawings.forEach(draw => draw()));
attempt(open)();
