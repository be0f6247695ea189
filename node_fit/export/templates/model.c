/* A model that node_fit {{ version }} fitted, as C99: no allocation, no libraries but that of mathematics. */
#include "model.h"

#include <math.h>
#include <stddef.h>

typedef model_real real;

#define M MODEL_MEMBERS
#define S MODEL_STATES
#define C MODEL_CHANNELS
#define I MODEL_INPUTS
#define ROOM {{ [inputs|length, 1]|max }} /* of inputs: C has no empty arrays */
#define ROWS {{ rows }} /* that a start is read from */

static const double time_shift = {{ time_shift }}, time_scale = {{ time_scale }};
static const double longest_step = {{ longest }};
static const int fewest_steps = {{ fewest }};

const char *const model_time_name = {{ time|c }};
const char *const model_state_names[] = { {%- for name in states %}{{ name|c }}, {% endfor -%} };
const char *const model_channel_names[] = { {%- for name in channels %}{{ name|c }}, {% endfor -%} };
const char *const model_input_names[] = { {%- for name in inputs %}{{ name|c }}, {% endfor %}NULL};
const char *const model_column_names[] = { {%- for name in columns %}{{ name|c }}, {% endfor -%} };

{{ preamble }}

{% for text in functions %}
{{ text }}

{% endfor %}
{% for name, results in dispatched %}
static void {{ name }}(int m{{ signatures[name] }})
{
    switch (m) {
    {% for m in range(members) %}
    {{ 'default' if m == members - 1 else 'case ' ~ m }}:
        {{ name }}_{{ m }}({{ results }});
        break;
    {% endfor %}
    }
}

{% endfor %}
static real scaled_time(double t)
{
    return (real)((t - time_shift) / time_scale);
}

{% set differ = degrees | unique | list | length > 1 %}
{% if differ %}
/* The degree of each input between two rows; 0 if it is held. */
static const int degree_of[ROOM] = { {{- degrees | join(", ") -}} };

{% endif %}
/* Inputs between two rows: a polynomial in the share of the way from one to the other. */
typedef struct {
    real c[{{ degree + 1 }}][ROOM];
} Between;

static void inputs_at(const Between *b, real share, real *u)
{
    {% if not inputs %}
    (void)b;
    (void)share;
    (void)u;
    {% elif degree %}
    for (int i = 0; i < I; i++) {
        u[i] = b->c[{{ degree }}][i];
        for (int k = {{ degree - 1 }}; k >= 0; k--)
            u[i] = b->c[k][i] + share * u[i];
    }
    {% else %}
    (void)share;
    for (int i = 0; i < I; i++)
        u[i] = b->c[0][i];
    {% endif %}
}

static void scale_row(const real *u, real *v)
{
    {% if inputs %}
    scale_inputs(u, v);
    {% else %}
    (void)u;
    (void)v;
    {% endif %}
}

{% if solves %}
/* Solves a x = b by elimination; x is in b afterwards. */
static void solve(int n, real *a, real *b)
{
    for (int k = 0; k < n; k++) {
        int best = k;
        for (int i = k + 1; i < n; i++)
            if (fabs((double)a[i * n + k]) > fabs((double)a[best * n + k]))
                best = i;
        if (best != k) {
            for (int j = 0; j < n; j++) {
                const real swap = a[k * n + j];
                a[k * n + j] = a[best * n + j];
                a[best * n + j] = swap;
            }
            const real swap = b[k];
            b[k] = b[best];
            b[best] = swap;
        }
        for (int i = k + 1; i < n; i++) {
            const real factor = a[i * n + k] / a[k * n + k];
            for (int j = k; j < n; j++)
                a[i * n + j] -= factor * a[k * n + j];
            b[i] -= factor * b[k];
        }
    }
    for (int k = n - 1; k >= 0; k--) {
        for (int j = k + 1; j < n; j++)
            b[k] -= a[k * n + j] * b[j];
        b[k] /= a[k * n + k];
    }
}

{% endif %}
{% if implicit %}
/* A step of Radau IIA of order 5 (Hairer and Wanner, Solving Ordinary Differential Equations II, 1996, table IV.5.6), by
   Newton's method. */
static void one_step(int m, real t, real h, const Between *b, real share, real part, real *z)
{
    static const real a[3][3] = { {{ radau_a }} };
    static const real c[3] = { {{ radau_c }} };
    real d[3 * S], next[S], rates_of[S], slopes_of[S * S], u[ROOM] = {0};
    for (int i = 0; i < 3 * S; i++)
        d[i] = 0;
    for (int trial = 0; trial < 15; trial++) {
        real matrix[9 * S * S], rest[3 * S], moved = 0;
        for (int i = 0; i < 3 * S; i++)
            rest[i] = -d[i];
        for (int i = 0; i < 9 * S * S; i++)
            matrix[i] = 0;
        for (int i = 0; i < 3 * S; i++)
            matrix[i * 3 * S + i] = 1;
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < S; i++)
                next[i] = z[i] + d[k * S + i];
            inputs_at(b, share + c[k] * part, u);
            rates(m, t + c[k] * h, next, u, rates_of);
            slopes(m, t + c[k] * h, next, u, slopes_of);
            for (int j = 0; j < 3; j++)
                for (int i = 0; i < S; i++) {
                    rest[j * S + i] += h * a[j][k] * rates_of[i];
                    for (int l = 0; l < S; l++)
                        matrix[(j * S + i) * 3 * S + k * S + l] -= h * a[j][k] * slopes_of[i * S + l];
                }
        }
        solve(3 * S, matrix, rest);
        for (int i = 0; i < 3 * S; i++) {
            const real size = (real)(fabs((double)rest[i]) / (1 + fabs((double)z[i % S])));
            d[i] += rest[i];
            moved = size > moved ? size : moved;
        }
        if (moved < (real){{ settled }})
            break;
    }
    for (int i = 0; i < S; i++)
        z[i] += d[2 * S + i];
}
{% else %}
/* A step of the method of Tsitouras (Computers and Mathematics with Applications 62, 2011). */
static void one_step(int m, real t, real h, const Between *b, real share, real part, real *z)
{
    static const real a[{{ stages }}][{{ stages }}] = {
        {% for row in tsit_a %}
        { {{ row }} },
        {% endfor %}
    };
    static const real c[{{ stages }}] = { {{ tsit_c }} }, weights[{{ stages }}] = { {{ tsit_b }} };
    real k[{{ stages }}][S], next[S], u[ROOM] = {0};
    for (int stage = 0; stage < {{ stages }}; stage++) {
        for (int i = 0; i < S; i++) {
            real sum = 0;
            for (int j = 0; j < stage; j++)
                sum += a[stage][j] * k[j][i];
            next[i] = z[i] + h * sum;
        }
        inputs_at(b, share + c[stage] * part, u);
        rates(m, t + c[stage] * h, next, u, k[stage]);
    }
    for (int i = 0; i < S; i++) {
        real sum = 0;
        for (int j = 0; j < {{ stages }}; j++)
            sum += weights[j] * k[j][i];
        z[i] += h * sum;
    }
}
{% endif %}

{% if triggers %}
/* Which triggers act when their level falls through zero: those whose level has been above it since they last did. A
   level that is zero to rounding counts as below: it acts at the end of a step, and not again as the next begins. */
typedef struct {
    int armed[MODEL_TRIGGERS];
} Watch;

static void arm(int m, real t, const real *z, const Between *b, real share, Watch *watch)
{
    real level[MODEL_TRIGGERS], u[ROOM] = {0};
    inputs_at(b, share, u);
    heights(m, t, z, u, level);
    for (int k = 0; k < MODEL_TRIGGERS; k++)
        watch->armed[k] = watch->armed[k] || level[k] > 0;
}

/* Whether an armed trigger's level is not above zero; the states after all that act are then in z. */
static int act(int m, real t, real *z, const Between *b, real share, Watch *watch)
{
    real level[MODEL_TRIGGERS], after[MODEL_TRIGGERS * S], u[ROOM] = {0};
    int acted = 0;
    inputs_at(b, share, u);
    for (int round = 0; round < 8; round++) {
        int due[MODEL_TRIGGERS], any = 0;
        heights(m, t, z, u, level);
        for (int k = 0; k < MODEL_TRIGGERS; k++)
            any += due[k] = watch->armed[k] && level[k] <= 0;
        if (!any)
            break;
        acted = 1;
        for (int k = 0; k < MODEL_TRIGGERS; k++)
            if (due[k]) {
                jumped(m, t, z, u, after);
                for (int i = 0; i < S; i++)
                    z[i] = after[k * S + i];
                watch->armed[k] = 0;
            }
    }
    return acted;
}

static int is_due(int m, real t, const real *z, const Between *b, real share, const Watch *watch)
{
    real level[MODEL_TRIGGERS], u[ROOM] = {0};
    inputs_at(b, share, u);
    heights(m, t, z, u, level);
    for (int k = 0; k < MODEL_TRIGGERS; k++)
        if (watch->armed[k] && level[k] <= 0)
            return 1;
    return 0;
}

/* A step within which triggers act: looks for the first at eighths of what is left, and halves the gap. */
static void watched_step(int m, real t, real h, const Between *b, real share, real part, real *z, Watch *watch)
{
    real done = 0;
    for (int events = 0; events < 1000 && done < 1; events++) {
        real begin[S], left = done, right = 1;
        int found = 0;
        for (int i = 0; i < S; i++)
            begin[i] = z[i];
        for (int eighth = 1; eighth <= 8 && !found; eighth++) {
            right = eighth == 8 ? 1 : done + (1 - done) * (real)eighth / 8;
            for (int i = 0; i < S; i++)
                z[i] = begin[i];
            one_step(m, t + done * h, (right - done) * h, b, share + done * part, (right - done) * part, z);
            found = is_due(m, t + right * h, z, b, share + right * part, watch);
            if (!found) {
                arm(m, t + right * h, z, b, share + right * part, watch);
                left = right;
            }
        }
        if (!found)
            return;
        for (int trial = 0; trial < {{ halvings }}; trial++) {
            const real middle = left + (right - left) / 2;
            for (int i = 0; i < S; i++)
                z[i] = begin[i];
            one_step(m, t + done * h, (middle - done) * h, b, share + done * part, (middle - done) * part, z);
            if (is_due(m, t + middle * h, z, b, share + middle * part, watch))
                right = middle;
            else
                left = middle;
        }
        for (int i = 0; i < S; i++)
            z[i] = begin[i];
        one_step(m, t + done * h, (right - done) * h, b, share + done * part, (right - done) * part, z);
        act(m, t + right * h, z, b, share + right * part, watch);
        done = right;
    }
}
{% endif %}

{% if steady %}
static real size_of(int n, const real *values)
{
    real sum = 0;
    for (int i = 0; i < n; i++)
        sum += values[i] * values[i];
    return sum;
}

/* The states at which nothing changes, by Levenberg and Marquardt's method from z on. */
static void rest(int m, real t, const real *v, real *z)
{
    real damping = (real)1e-3, rates_of[S], slopes_of[S * S], matrix[S * S], move[S], next[S];
    rates(m, t, z, v, rates_of);
    for (int trial = 0; trial < 200; trial++) {
        const real size = size_of(S, rates_of);
        slopes(m, t, z, v, slopes_of);
        for (int i = 0; i < S; i++) {
            move[i] = 0;
            for (int k = 0; k < S; k++)
                move[i] -= slopes_of[k * S + i] * rates_of[k];
            for (int j = 0; j < S; j++) {
                matrix[i * S + j] = i == j ? damping : 0;
                for (int k = 0; k < S; k++)
                    matrix[i * S + j] += slopes_of[k * S + i] * slopes_of[k * S + j];
            }
        }
        solve(S, matrix, move);
        for (int i = 0; i < S; i++)
            next[i] = z[i] + move[i];
        rates(m, t, next, v, rates_of);
        if (size_of(S, rates_of) < size) {
            for (int i = 0; i < S; i++)
                z[i] = next[i];
            damping *= (real)0.1;
        } else {
            damping *= 8;
            rates(m, t, z, v, rates_of);
            if (!(damping < (real)1e10))
                break;
        }
    }
}

{% endif %}
/* Goes on from t to t + h in equal steps. */
static void march(double t, double h, const Between *b, real *z{{ ', Watch *watches' if triggers }})
{
    const double wanted = ceil(h / longest_step * (1 - 1e-9));
    const int steps = wanted > fewest_steps ? (int)wanted : fewest_steps;
    const real begin = scaled_time(t), part = 1 / (real)steps, length = (real)(h / time_scale / steps);
    if (!(h > 0))
        return;
    for (int m = 0; m < M; m++)
        for (int n = 0; n < steps; n++)
            {% if triggers %}
            watched_step(m, begin + (real)n * length, length, b, (real)n * part, part, z + m * S, &watches[m]);
            {% else %}
            one_step(m, begin + (real)n * length, length, b, (real)n * part, part, z + m * S);
            {% endif %}
}

static void users_states(const real *z, real *y)
{
    for (int m = 0; m < M; m++)
        states(m, z + m * S, y + m * S);
}

static void scaled_states(const real *y, real *z)
{
    for (int m = 0; m < M; m++)
        line(m, y + m * S, z + m * S);
}

static void observe({{ "real t, " if observes }}const real *z{{ ", const real *v" if observes }}, real *columns)
{
    {% if combined %}
    real scaled[M * C];
    for (int m = 0; m < M; m++)
        outputs(m, {{ "t, " if observes }}z + m * S{{ ", v" if observes }}, scaled + m * C);
    combine(scaled, columns, columns + C, columns + 2 * C);
    {% else %}
    channels(0, {{ "t, " if observes }}z{{ ", v" if observes }}, columns);
    {% endif %}
}

void model_field(double t, const real *y, const real *u, real *rates_of)
{
    for (int m = 0; m < M; m++)
        field(m, (real)t, y + m * S, u, rates_of + m * S);
}

void model_jacobian(double t, const real *y, const real *u, real *matrix)
{
    for (int m = 0; m < M; m++)
        jacobian(m, (real)t, y + m * S, u, matrix + m * S * S);
}

void model_step(double t, double h, const real *u, const real *v, real *y)
{
    real z[M * S];
    Between b;
    scale_row(u, b.c[0]);
    {% if degree %}
    for (int i = 0; i < I; i++) {
        {% for k in range(1, degree + 1) %}
        b.c[{{ k }}][i] = 0;
        {% endfor %}
    }
    {% if inputs %}
    scale_row(v, b.c[1]);
    for (int i = 0; i < I; i++)
        b.c[1][i] {{ "= degree_of[i] ? b.c[1][i] - b.c[0][i] : 0" if differ else "-= b.c[0][i]" }};
    {% else %}
    (void)v;
    {% endif %}
    {% else %}
    (void)v;
    {% endif %}
    scaled_states(y, z);
    {% if triggers %}
    Watch watches[M] = {0};
    for (int m = 0; m < M; m++)
        arm(m, scaled_time(t), z + m * S, &b, 0, &watches[m]);
    {% endif %}
    march(t, h, &b, z{{ ', watches' if triggers }});
    users_states(z, y);
}

/* Multiplies states, and adds to them; whether that changes them. */
static int change(const real *factor, const real *shift, real *y)
{
    int jumps = 0;
    for (int i = 0; i < M * S; i++) {
        const real times = factor ? factor[i] : 1, plus = shift ? shift[i] : 0;
        jumps |= times < 1 || times > 1 || plus < 0 || plus > 0;
        y[i] = times * y[i] + plus;
    }
    return jumps;
}

void model_jump(double t, const real *u, const real *factor, const real *shift, real *y)
{
    {% if triggers %}
    real z[M * S];
    Watch watches[M] = {0};
    Between b;
    scale_row(u, b.c[0]);
    {% for k in range(1, degree + 1) %}
    for (int i = 0; i < I; i++)
        b.c[{{ k }}][i] = 0;
    {% endfor %}
    scaled_states(y, z);
    for (int m = 0; m < M; m++)
        arm(m, scaled_time(t), z + m * S, &b, 0, &watches[m]);
    if (!change(factor, shift, y))
        return;
    scaled_states(y, z);
    for (int m = 0; m < M; m++)
        act(m, scaled_time(t), z + m * S, &b, 0, &watches[m]);
    users_states(z, y);
    {% else %}
    (void)t;
    (void)u;
    change(factor, shift, y);
    {% endif %}
}
{% if triggers %}

void model_levels(double t, const real *u, const real *y, real *level)
{
    real z[M * S], v[ROOM] = {0};
    scale_row(u, v);
    scaled_states(y, z);
    for (int m = 0; m < M; m++)
        levels(m, scaled_time(t), z + m * S, v, level + m * MODEL_TRIGGERS);
}

void model_trigger(double t, const real *u, int which, real *y)
{
    real z[M * S], after[MODEL_TRIGGERS * S], v[ROOM] = {0};
    const int m = which / MODEL_TRIGGERS;
    scale_row(u, v);
    scaled_states(y, z);
    jumped(m, scaled_time(t), z + m * S, v, after);
    states(m, after + which % MODEL_TRIGGERS * S, y + m * S);
}
{% endif %}

{% if observes %}
void model_observe(double t, const real *u, const real *y, real *columns)
{
    real z[M * S], v[ROOM] = {0};
    scale_row(u, v);
    scaled_states(y, z);
    observe(scaled_time(t), z, v, columns);
}
{% else %}
void model_observe(const real *y, real *columns)
{
    real z[M * S];
    scaled_states(y, z);
    observe(z, columns);
}
{% endif %}

/* A measured channel, of an angle without a jump since the last known one. */
static real without_jump(int channel, real value, real *last)
{
    {% if turns|select|list %}
    static const real turn[] = { {{ turns_text }} };
    if (turn[channel] > 0 && isfinite(value)) {
        value -= turn[channel] * (real)floor((double)((value - last[channel]) / turn[channel]) + 0.5);
        last[channel] = value;
    }
    {% else %}
    (void)channel;
    (void)last;
    {% endif %}
    return value;
}

static int is_measured(const real *row)
{
    for (int i = 0; i < C; i++)
        if (isfinite(row[i]))
            return 1;
    return 0;
}

/* The row at which a record starts. */
static int start_row(int rows, const real *y)
{
    {% if past %}
    int first = 0, alone = ROWS - 1, before;
    while (first < rows && !is_measured(y + first * C))
        first++;
    first = first < rows ? first : 0;
    alone = alone < rows - 2 ? alone : rows > 2 ? rows - 2 : 0;
    before = first - 1 < alone ? first - 1 : alone;
    before = first - 1 - {{ washout }} > before ? first - 1 - {{ washout }} : before;
    return first > 0 ? before : alone;
    {% else %}
    (void)rows;
    (void)y;
    (void)is_measured;
    return 0;
    {% endif %}
}

/* The scaled states at the start of a record. */
static int begin(int rows, const double *t, const real *u, const real *y, real *z)
{
    const int at = rows > 0 ? start_row(rows, y) : 0;
    real first[C], last[C], ys[ROWS * C], us[ROWS * ROOM] = {0}, ts[ROWS], there[ROWS];
    int missing = C;
    if (rows < 1) {
        for (int i = 0; i < M * S; i++)
            z[i] = (real)NAN;
        return 0;
    }
    for (int i = 0; i < C; i++) {
        first[i] = (real)NAN;
        last[i] = 0;
    }
    for (int row = 0; row < rows && (missing || row < {{ 'at + 1' if past else 'ROWS' }}); row++) {
        {% if past %}
        const int place = row - at + ROWS - 1;
        {% else %}
        const int place = row;
        {% endif %}
        for (int i = 0; i < C; i++) {
            const real value = without_jump(i, y[row * C + i], last);
            if (row >= at && isfinite(value) && !isfinite(first[i])) {
                first[i] = value;
                missing--;
            }
            if (place >= 0 && place < ROWS)
                ys[place * C + i] = value;
        }
    }
    for (int place = 0; place < ROWS; place++) {
        {% if past %}
        const int row = at + place - (ROWS - 1), source = row < 0 ? 0 : row;
        {% else %}
        const int row = place, source = row < rows ? row : rows - 1;
        {% endif %}
        there[place] = row >= 0 && row < rows;
        ts[place] = (real)(t[source] - t[at]);
        for (int i = 0; i < I; i++)
            us[place * I + i] = u[source * I + i];
    }
    {% if past %}
    for (int place = ROWS - 1; place >= 0; place--)
        if (there[place] < (real)0.5)
            for (int i = 0; i < C; i++)
                ys[place * C + i] = ys[(place + 1) * C + i];
    {% else %}
    for (int place = rows; place < ROWS; place++)
        for (int i = 0; i < C; i++)
            ys[place * C + i] = (real)NAN;
    {% endif %}
    for (int m = 0; m < M; m++)
        start(m, first, ys, us, ts, there, scaled_time(t[at]), z + m * S);
    {% if steady %}
    real v[ROOM] = {0};
    scale_row(u + at * I, v);
    for (int m = 0; m < M; m++)
        rest(m, scaled_time(t[at]), v, z + m * S);
    {% endif %}
    return at;
}

int model_start(int rows, const double *t, const real *u, const real *y, real *states_of)
{
    real z[M * S];
    const int at = begin(rows, t, u, y, z);
    users_states(z, states_of);
    return at;
}

/* The inputs between a row and the next. */
static void between(int rows, int row, const double *t, const real *u, Between *b)
{
    {% if not inputs %}
    (void)rows;
    (void)row;
    (void)t;
    (void)u;
    (void)b;
    {% elif degree == 0 %}
    (void)rows;
    (void)t;
    scale_row(u + row * I, b->c[0]);
    {% elif degree == 1 %}
    (void)rows;
    (void)t;
    scale_row(u + row * I, b->c[0]);
    scale_row(u + (row + 1) * I, b->c[1]);
    for (int i = 0; i < I; i++)
        b->c[1][i] {{ "= degree_of[i] ? b->c[1][i] - b->c[0][i] : 0" if differ else "-= b->c[0][i]" }};
    {% else %}
    /* A cubic whose slope at a row is that of the parabola through it and its neighbours. */
    const double gap = t[row + 1] - t[row];
    real before[ROOM], left[ROOM], right[ROOM], after[ROOM];
    scale_row(u + (row > 0 ? row - 1 : 0) * I, before);
    scale_row(u + row * I, left);
    scale_row(u + (row + 1) * I, right);
    scale_row(u + (row + 2 < rows ? row + 2 : rows - 1) * I, after);
    const double back = row > 0 ? t[row] - t[row - 1] : 0, ahead = row + 2 < rows ? t[row + 2] - t[row + 1] : 0;
    const double w = back > 0 ? back / (back + gap) : 1, x = ahead > 0 ? gap / (gap + ahead) : 0;
    for (int i = 0; i < I; i++) {
        const real rise = right[i] - left[i];
        const real earlier = back > 0 ? (real)(gap / back) * (left[i] - before[i]) : 0;
        const real later = ahead > 0 ? (real)(gap / ahead) * (after[i] - right[i]) : 0;
        const real first = back > 0 ? (real)(1 - w) * earlier + (real)w * rise : rise;
        const real last = ahead > 0 ? (real)(1 - x) * rise + (real)x * later : rise;
        b->c[0][i] = left[i];
        {% if differ %}
        if (degree_of[i] < 3) {
            b->c[1][i] = degree_of[i] ? rise : 0;
            b->c[2][i] = b->c[3][i] = 0;
            continue;
        }
        {% endif %}
        b->c[1][i] = first;
        b->c[2][i] = 3 * rise - 2 * first - last;
        b->c[3][i] = first + last - 2 * rise;
    }
    {% endif %}
}

static int all_finite(int count, const real *values)
{
    for (int i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return 0;
    return 1;
}

int model_simulate(int rows, const double *t, const real *u, const real *y, const real *start_of, const real *factor,
                   const real *shift, real *columns, real *states_of)
{
    real z[M * S], users[M * S];
    int at = 0, failed = 0;
    {% if triggers %}
    Watch watches[M] = {0};
    {% endif %}
    if (start_of)
        scaled_states(start_of, z);
    else
        at = begin(rows, t, u, y, z);
    for (int row = 0; row < at; row++) {
        for (int i = 0; i < MODEL_COLUMNS; i++)
            columns[row * MODEL_COLUMNS + i] = (real)NAN;
        for (int i = 0; states_of && i < M * S; i++)
            states_of[row * M * S + i] = (real)NAN;
    }
    for (int row = at; row < rows; row++) {
        Between b;
        {% if observes %}
        real now[ROOM] = {0};
        scale_row(u + row * I, now);
        observe(scaled_time(t[row]), z, now, columns + row * MODEL_COLUMNS);
        {% else %}
        observe(z, columns + row * MODEL_COLUMNS);
        {% endif %}
        {% if horizon %}
        if (t[row] - t[0] > {{ horizon }})
            for (int i = C; i < MODEL_COLUMNS; i++)
                columns[row * MODEL_COLUMNS + i] = (real)NAN;
        {% endif %}
        users_states(z, users);
        failed |= !all_finite(M * S, users);
        for (int i = 0; states_of && i < M * S; i++)
            states_of[row * M * S + i] = users[i];
        if (row + 1 == rows)
            break;
        between(rows, row, t, u, &b);
        {% if triggers %}
        for (int m = 0; m < M; m++)
            arm(m, scaled_time(t[row]), z + m * S, &b, 0, &watches[m]);
        {% endif %}
        if (change(factor ? factor + row * M * S : NULL, shift ? shift + row * M * S : NULL, users))
            scaled_states(users, z);
        {% if triggers %}
        for (int m = 0; m < M; m++)
            act(m, scaled_time(t[row]), z + m * S, &b, 0, &watches[m]);
        {% endif %}
        march(t[row], t[row + 1] - t[row], &b, z{{ ', watches' if triggers }});
    }
    return failed;
}
