{% set second = version_of_fmi == "2.0" %}
{% set fmi, bool = ("fmi2", "int") if second else ("fmi3", "_Bool") %}
/* The model as a functional mock-up unit, version {{ version_of_fmi }}, for Model Exchange and Co-Simulation.

   Written for the interface of the FMI standard (https://fmi-standard.org). Value references: 0 is the time; then come
   the states, their derivatives, the inputs, what is predicted{% if jumps %}, what each state is multiplied with once and what
   is then added to it{% endif %}{% if triggers %}, and the levels of the triggers{% endif %}. */
#include "model.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define N MODEL_ALL_STATES
#define I MODEL_INPUTS
#define ROOM (I > 0 ? I : 1)
#define LEVELS (MODEL_MEMBERS * MODEL_TRIGGERS)
#define JUMPS {{ "N" if jumps else "0" }}
#define FIRST_RATE (1 + N)
#define FIRST_INPUT (1 + 2 * N)
#define FIRST_COLUMN (1 + 2 * N + I)
#define FIRST_FACTOR (FIRST_COLUMN + MODEL_COLUMNS)
#define FIRST_SHIFT (FIRST_FACTOR + JUMPS)
#define FIRST_LEVEL (FIRST_SHIFT + JUMPS)
#define END (FIRST_LEVEL + LEVELS)

#if defined _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT
#endif

typedef enum { OK, WARNING, DISCARD, ERROR } Status;
typedef unsigned int Reference;

typedef struct {
    double time;
    double states[N], inputs[ROOM], slopes[ROOM];
    double factors[N], shifts[N]; /* states become factor * state + shift at the next event, or as a step begins */
    {% if triggers %}
    double highest[LEVELS]; /* that each level has been */
    int armed[LEVELS];      /* whether it has been above zero since its trigger last acted */
    {% endif %}
} Instance;

static const double start[N] = { {{ start }} }, nominal[N] = { {{ nominal }} };
static const double first_inputs[ROOM] = { {{ first_inputs }} };

static void no_jumps(Instance *own)
{
    for (int i = 0; i < N; i++) {
        own->factors[i] = 1;
        own->shifts[i] = 0;
    }
}

static void reset(Instance *own)
{
    memset(own, 0, sizeof *own);
    memcpy(own->states, start, sizeof start);
    memcpy(own->inputs, first_inputs, sizeof first_inputs);
    no_jumps(own);
}

static void *instantiate(const char *token)
{
    Instance *own = token && strcmp(token, MODEL_DIGEST) == 0 ? malloc(sizeof *own) : NULL;
    if (own)
        reset(own);
    return own;
}

/* The number that a reference stands for, of those that are kept; NULL of others. */
static double *kept(Instance *own, Reference at)
{
    if (at >= 1 && at < FIRST_RATE)
        return &own->states[at - 1];
    if (at >= FIRST_INPUT && at < FIRST_COLUMN)
        return &own->inputs[at - FIRST_INPUT];
    {% if jumps %}
    if (at >= FIRST_FACTOR && at < FIRST_SHIFT)
        return &own->factors[at - FIRST_FACTOR];
    if (at >= FIRST_SHIFT && at < FIRST_LEVEL)
        return &own->shifts[at - FIRST_SHIFT];
    {% endif %}
    return NULL;
}

static Status get(Instance *own, const Reference *at, size_t count, double *values)
{
    double rates[N], columns[MODEL_COLUMNS]{{ ", levels[LEVELS]" if triggers }};
    int has_rates = 0, has_columns = 0{{ ", has_levels = 0" if triggers }};
    for (size_t i = 0; i < count; i++) {
        const Reference place = at[i];
        const double *found = kept(own, place);
        if (found) {
            values[i] = *found;
        } else if (place == 0) {
            values[i] = own->time;
        } else if (place < FIRST_INPUT) {
            if (!has_rates)
                model_field(own->time, own->states, own->inputs, rates);
            has_rates = 1;
            values[i] = rates[place - FIRST_RATE];
        } else if (place < FIRST_FACTOR) {
            if (!has_columns)
                model_observe({{ "own->time, own->inputs, " if observes }}own->states, columns);
            has_columns = 1;
            values[i] = columns[place - FIRST_COLUMN];
        {% if triggers %}
        } else if (place < END) {
            if (!has_levels)
                model_levels(own->time, own->inputs, own->states, levels);
            has_levels = 1;
            values[i] = levels[place - FIRST_LEVEL];
        {% endif %}
        } else {
            return ERROR;
        }
    }
    return OK;
}

static Status set(Instance *own, const Reference *at, size_t count, const double *values)
{
    for (size_t i = 0; i < count; i++) {
        double *found = kept(own, at[i]);
        if (!found)
            return ERROR;
        *found = values[i];
    }
    return OK;
}

{% if triggers %}
/* Arms the triggers whose level is above zero. An importer finds the time at which a level is zero only to rounding, so
   that levels are compared with a small share of the highest that they have been. */
static void arm(Instance *own)
{
    double levels[LEVELS];
    model_levels(own->time, own->inputs, own->states, levels);
    for (int k = 0; k < LEVELS; k++) {
        if (levels[k] > own->highest[k])
            own->highest[k] = levels[k];
        own->armed[k] |= levels[k] > 2e-9 * own->highest[k];
    }
}

/* Acts until no armed trigger's level has fallen to zero; whether one had. */
static int act(Instance *own)
{
    int acted = 0;
    for (int round = 0; round < 8; round++) {
        double levels[LEVELS];
        int due[LEVELS], any = 0;
        model_levels(own->time, own->inputs, own->states, levels);
        for (int k = 0; k < LEVELS; k++)
            any += due[k] = own->armed[k] && levels[k] <= 1e-9 * own->highest[k];
        if (!any)
            break;
        for (int k = 0; k < LEVELS; k++)
            if (due[k]) {
                model_trigger(own->time, own->inputs, k, own->states);
                own->armed[k] = 0;
            }
        acted = 1;
    }
    return acted;
}

{% endif %}
/* What happens at an event; whether that changes the states. */
static int handle_event(Instance *own)
{
    int changed = 0;
    {% if triggers %}
    arm(own);
    {% endif %}
    for (int i = 0; i < N; i++) {
        const double before = own->states[i];
        own->states[i] = own->factors[i] * before + own->shifts[i];
        changed |= own->states[i] < before || own->states[i] > before;
    }
    no_jumps(own);
    {% if triggers %}
    changed |= act(own);
    {% endif %}
    return changed;
}

/* Derivatives along a direction of states and inputs, of the states' derivatives and of what is predicted: those of the
   derivatives by the states are exact, others central differences. */
static Status directional(Instance *own, const Reference *unknown, size_t unknowns, const Reference *known, size_t knowns,
                          const double *seed, double *found)
{
    Instance up = *own, down = *own;
    double matrix[N * MODEL_STATES], steepest = 0, size;
    int exact = 1;
    for (size_t i = 0; i < unknowns; i++)
        exact &= unknown[i] >= FIRST_RATE && unknown[i] < FIRST_INPUT;
    for (size_t k = 0; k < knowns; k++) {
        if (known[k] >= FIRST_COLUMN || !kept(own, known[k]))
            return ERROR;
        size = known[k] < FIRST_RATE ? nominal[known[k] - 1] : 1 + fabs(*kept(own, known[k]));
        steepest = fmax(steepest, fabs(seed[k]) / size);
        exact &= known[k] < FIRST_RATE;
    }
    if (exact) {
        model_jacobian(own->time, own->states, own->inputs, matrix);
        for (size_t i = 0; i < unknowns; i++) {
            const size_t row = unknown[i] - FIRST_RATE;
            found[i] = 0;
            for (size_t k = 0; k < knowns; k++)
                if (row / MODEL_STATES == (known[k] - 1) / MODEL_STATES)
                    found[i] += matrix[row * MODEL_STATES + (known[k] - 1) % MODEL_STATES] * seed[k];
        }
        return OK;
    }
    size = 1e-6 / (steepest > 0 ? steepest : 1);
    for (size_t k = 0; k < knowns; k++) {
        *kept(&up, known[k]) += size * seed[k];
        *kept(&down, known[k]) -= size * seed[k];
    }
    for (size_t i = 0; i < unknowns; i++) {
        double more, less;
        if (get(&up, unknown + i, 1, &more) != OK || get(&down, unknown + i, 1, &less) != OK)
            return ERROR;
        found[i] = (more - less) / (2 * size);
    }
    return OK;
}

static Status do_step(Instance *own, double time, double length)
{
    double ends[ROOM];
    model_jump(time, own->inputs, own->factors, own->shifts, own->states);
    no_jumps(own);
    for (int i = 0; i < I; i++)
        ends[i] = own->inputs[i] + length * own->slopes[i];
    model_step(time, length, own->inputs, ends, own->states);
    own->time = time + length;
    for (int i = 0; i < N; i++)
        if (!isfinite(own->states[i]))
            return ERROR;
    return OK;
}

{% if second %}
/* The slopes of inputs within a step. */
static Status set_slopes(Instance *own, const Reference *at, size_t count, const int *orders, const double *values)
{
    for (size_t i = 0; i < count; i++) {
        if (at[i] < FIRST_INPUT || at[i] >= FIRST_COLUMN || orders[i] != 1)
            return ERROR;
        own->slopes[at[i] - FIRST_INPUT] = values[i];
    }
    return OK;
}

{% endif %}
static Status copy_to(const void *own, void **copy)
{
    if (!*copy)
        *copy = malloc(sizeof(Instance));
    if (!*copy)
        return ERROR;
    memcpy(*copy, own, sizeof(Instance));
    return OK;
}

/* What both versions of the interface have. */
EXPORT const char *{{ fmi }}GetVersion(void) { return "{{ version_of_fmi }}"; }
EXPORT void {{ fmi }}FreeInstance(void *c) { free(c); }
EXPORT Status {{ fmi }}Reset(void *c) { reset(c); return OK; }
EXPORT Status {{ fmi }}SetDebugLogging(void *c, {{ bool }} on, size_t n, const char *const names[])
{
    (void)c, (void)on, (void)n, (void)names;
    return OK;
}
{% for name in quiet %}
EXPORT Status {{ fmi }}{{ name }}(void *c) { (void)c; return OK; }
{% endfor %}
EXPORT Status {{ fmi }}SetTime(void *c, double time) { ((Instance *)c)->time = time; return OK; }
EXPORT Status {{ fmi }}SetContinuousStates(void *c, const double *x, size_t n)
{
    if (n == N)
        memcpy(((Instance *)c)->states, x, sizeof start);
    return n == N ? OK : ERROR;
}
EXPORT Status {{ fmi }}GetContinuousStates(void *c, double *x, size_t n)
{
    if (n == N)
        memcpy(x, ((Instance *)c)->states, sizeof start);
    return n == N ? OK : ERROR;
}
EXPORT Status {{ fmi }}GetNominalsOfContinuousStates(void *c, double *x, size_t n)
{
    (void)c;
    if (n == N)
        memcpy(x, nominal, sizeof nominal);
    return n == N ? OK : ERROR;
}
EXPORT Status {{ fmi }}Get{{ "" if second else "ContinuousState" }}Derivatives(void *c, double *rates, size_t n)
{
    const Instance *own = c;
    if (n == N)
        model_field(own->time, own->states, own->inputs, rates);
    return n == N ? OK : ERROR;
}
EXPORT Status {{ fmi }}GetEventIndicators(void *c, double *values, size_t n)
{
    {% if triggers %}
    const Instance *own = c;
    if (n == LEVELS)
        model_levels(own->time, own->inputs, own->states, values);
    {% else %}
    (void)c, (void)values;
    {% endif %}
    return n == LEVELS ? OK : ERROR;
}
EXPORT Status {{ fmi }}CompletedIntegratorStep(void *c, {{ bool }} no_set, {{ bool }} *enter_events, {{ bool }} *terminate)
{
    (void)no_set;
    {% if triggers %}
    arm(c);
    {% else %}
    (void)c;
    {% endif %}
    *enter_events = *terminate = 0;
    return OK;
}
{% set state, bytes = ("FMUstate", "char") if second else ("FMUState", "unsigned char") %}
EXPORT Status {{ fmi }}Get{{ state }}(void *c, void **copy) { return copy_to(c, copy); }
EXPORT Status {{ fmi }}Set{{ state }}(void *c, void *copy) { memcpy(c, copy, sizeof(Instance)); return OK; }
EXPORT Status {{ fmi }}Free{{ state }}(void *c, void **copy) { (void)c; free(*copy); *copy = NULL; return OK; }
EXPORT Status {{ fmi }}Serialized{{ state }}Size(void *c, void *copy, size_t *size)
{
    (void)c, (void)copy;
    *size = sizeof(Instance);
    return OK;
}
EXPORT Status {{ fmi }}Serialize{{ state }}(void *c, void *copy, {{ bytes }} *to, size_t size)
{
    (void)c;
    if (size < sizeof(Instance))
        return ERROR;
    memcpy(to, copy, sizeof(Instance));
    return OK;
}
EXPORT Status {{ fmi }}De{{ "S" if second else "s" }}erialize{{ state }}(void *c, const {{ bytes }} *from, size_t size, void **copy)
{
    (void)c;
    return size < sizeof(Instance) ? ERROR : copy_to(from, copy);
}

{% if second %}
EXPORT const char *fmi2GetTypesPlatform(void) { return "default"; }
EXPORT void *fmi2Instantiate(const char *name, int kind, const char *token, const char *place, const void *functions,
                             int visible, int logging)
{
    (void)name, (void)kind, (void)place, (void)functions, (void)visible, (void)logging;
    return instantiate(token);
}
EXPORT Status fmi2SetupExperiment(void *c, int has_tolerance, double tolerance, double begin, int has_end, double end)
{
    (void)has_tolerance, (void)tolerance, (void)has_end, (void)end;
    ((Instance *)c)->time = begin;
    return OK;
}
EXPORT Status fmi2GetReal(void *c, const Reference *at, size_t n, double *values) { return get(c, at, n, values); }
EXPORT Status fmi2SetReal(void *c, const Reference *at, size_t n, const double *values) { return set(c, at, n, values); }
{% for name, type in [("Integer", "int"), ("Boolean", "int"), ("String", "const char *")] %}
EXPORT Status fmi2Get{{ name }}(void *c, const Reference *at, size_t n, {{ type }} *values)
{
    (void)c, (void)at, (void)values;
    return n ? ERROR : OK;
}
EXPORT Status fmi2Set{{ name }}(void *c, const Reference *at, size_t n, {{ type }} const *values)
{
    (void)c, (void)at, (void)values;
    return n ? ERROR : OK;
}
{% endfor %}
EXPORT Status fmi2GetDirectionalDerivative(void *c, const Reference *unknown, size_t unknowns, const Reference *known,
                                           size_t knowns, const double *seed, double *found)
{
    return directional(c, unknown, unknowns, known, knowns, seed, found);
}
typedef struct {
    int again, terminate, nominals_changed, states_changed, has_next;
    double next;
} Events;
EXPORT Status fmi2NewDiscreteStates(void *c, Events *events)
{
    memset(events, 0, sizeof *events);
    events->states_changed = handle_event(c);
    return OK;
}
EXPORT Status fmi2SetRealInputDerivatives(void *c, const Reference *at, size_t n, const int *orders, const double *values)
{
    return set_slopes(c, at, n, orders, values);
}
EXPORT Status fmi2GetRealOutputDerivatives(void *c, const Reference *at, size_t n, const int *orders, double *values)
{
    (void)c, (void)at, (void)orders, (void)values;
    return n ? ERROR : OK;
}
EXPORT Status fmi2DoStep(void *c, double time, double length, int no_set)
{
    (void)no_set;
    return do_step(c, time, length);
}
{% for name, type in [("", "Status"), ("Real", "double"), ("Integer", "int"), ("Boolean", "int"), ("String", "const char *")] %}
EXPORT Status fmi2Get{{ name }}Status(void *c, int kind, {{ type }} *value)
{
    (void)c, (void)kind, (void)value;
    return DISCARD;
}
{% endfor %}
{% else %}
EXPORT void *fmi3InstantiateModelExchange(const char *name, const char *token, const char *place, _Bool visible,
                                          _Bool logging, void *environment, const void *log)
{
    (void)name, (void)place, (void)visible, (void)logging, (void)environment, (void)log;
    return instantiate(token);
}
EXPORT void *fmi3InstantiateCoSimulation(const char *name, const char *token, const char *place, _Bool visible,
                                         _Bool logging, _Bool events, _Bool early, const Reference required[], size_t n,
                                         void *environment, const void *log, const void *update)
{
    (void)name, (void)place, (void)visible, (void)logging, (void)events, (void)early, (void)required, (void)n;
    (void)environment, (void)log, (void)update;
    return instantiate(token);
}
EXPORT void *fmi3InstantiateScheduledExecution(const char *name, const char *token, const char *place, _Bool visible,
                                               _Bool logging, void *environment, const void *log, const void *update,
                                               const void *lock, const void *unlock)
{
    (void)name, (void)token, (void)place, (void)visible, (void)logging, (void)environment, (void)log, (void)update;
    (void)lock, (void)unlock;
    return NULL;
}
EXPORT Status fmi3EnterInitializationMode(void *c, _Bool has_tolerance, double tolerance, double begin, _Bool has_end,
                                          double end)
{
    (void)has_tolerance, (void)tolerance, (void)has_end, (void)end;
    ((Instance *)c)->time = begin;
    return OK;
}
EXPORT Status fmi3GetFloat64(void *c, const Reference *at, size_t n, double *values, size_t m)
{
    return n == m ? get(c, at, n, values) : ERROR;
}
EXPORT Status fmi3SetFloat64(void *c, const Reference *at, size_t n, const double *values, size_t m)
{
    return n == m ? set(c, at, n, values) : ERROR;
}
{% for name, type in [("Float32", "float"), ("Int8", "signed char"), ("UInt8", "unsigned char"), ("Int16", "short"), ("UInt16", "unsigned short"), ("Int32", "int"), ("UInt32", "unsigned"), ("Int64", "long long"), ("UInt64", "unsigned long long"), ("Boolean", "_Bool"), ("String", "const char *")] %}
EXPORT Status fmi3Get{{ name }}(void *c, const Reference *at, size_t n, {{ type }} *values, size_t m)
{
    (void)c, (void)at, (void)values;
    return n || m ? ERROR : OK;
}
EXPORT Status fmi3Set{{ name }}(void *c, const Reference *at, size_t n, {{ type }} const *values, size_t m)
{
    (void)c, (void)at, (void)values;
    return n || m ? ERROR : OK;
}
{% endfor %}
EXPORT Status fmi3GetBinary(void *c, const Reference *at, size_t n, size_t *sizes, const void **values, size_t m)
{
    (void)c, (void)at, (void)sizes, (void)values;
    return n || m ? ERROR : OK;
}
EXPORT Status fmi3SetBinary(void *c, const Reference *at, size_t n, const size_t *sizes, const void *const *values, size_t m)
{
    (void)c, (void)at, (void)sizes, (void)values;
    return n || m ? ERROR : OK;
}
EXPORT Status fmi3GetClock(void *c, const Reference *at, size_t n, _Bool *values)
{
    (void)c, (void)at, (void)values;
    return n ? ERROR : OK;
}
EXPORT Status fmi3SetClock(void *c, const Reference *at, size_t n, const _Bool *values)
{
    (void)c, (void)at, (void)values;
    return n ? ERROR : OK;
}
EXPORT Status fmi3GetNumberOfVariableDependencies(void *c, Reference at, size_t *n)
{
    (void)c, (void)at, (void)n;
    return ERROR;
}
EXPORT Status fmi3GetVariableDependencies(void *c, Reference at, size_t *to, Reference *of, size_t *from, int *kinds, size_t n)
{
    (void)c, (void)at, (void)to, (void)of, (void)from, (void)kinds, (void)n;
    return ERROR;
}
EXPORT Status fmi3GetDirectionalDerivative(void *c, const Reference *unknown, size_t unknowns, const Reference *known,
                                           size_t knowns, const double *seed, size_t seeds, double *found, size_t founds)
{
    return seeds == knowns && founds == unknowns ? directional(c, unknown, unknowns, known, knowns, seed, found) : ERROR;
}
EXPORT Status fmi3GetAdjointDerivative(void *c, const Reference *unknown, size_t unknowns, const Reference *known,
                                       size_t knowns, const double *seed, size_t seeds, double *found, size_t founds)
{
    (void)c, (void)unknown, (void)unknowns, (void)known, (void)knowns, (void)seed, (void)seeds, (void)found, (void)founds;
    return ERROR;
}
{% for name in ["GetIntervalDecimal", "SetIntervalDecimal", "GetShiftDecimal", "SetShiftDecimal"] %}
EXPORT Status fmi3{{ name }}(void *c, const Reference *at, size_t n, double *values{{ ", int *kinds" if name == "GetIntervalDecimal" else "" }})
{
    (void)c, (void)at, (void)values{{ ", (void)kinds" if name == "GetIntervalDecimal" else "" }};
    return n ? ERROR : OK;
}
{% endfor %}
{% for name in ["GetIntervalFraction", "SetIntervalFraction", "GetShiftFraction", "SetShiftFraction"] %}
EXPORT Status fmi3{{ name }}(void *c, const Reference *at, size_t n, unsigned long long *counters, unsigned long long *of{{ ", int *kinds" if name == "GetIntervalFraction" else "" }})
{
    (void)c, (void)at, (void)counters, (void)of{{ ", (void)kinds" if name == "GetIntervalFraction" else "" }};
    return n ? ERROR : OK;
}
{% endfor %}
EXPORT Status fmi3UpdateDiscreteStates(void *c, _Bool *again, _Bool *terminate, _Bool *nominals_changed,
                                       _Bool *states_changed, _Bool *has_next, double *next)
{
    *again = *terminate = *nominals_changed = *has_next = 0;
    *next = 0;
    *states_changed = handle_event(c) != 0;
    return OK;
}
EXPORT Status fmi3GetNumberOfEventIndicators(void *c, size_t *n) { (void)c; *n = LEVELS; return OK; }
EXPORT Status fmi3GetNumberOfContinuousStates(void *c, size_t *n) { (void)c; *n = N; return OK; }
EXPORT Status fmi3GetOutputDerivatives(void *c, const Reference *at, size_t n, const int *orders, double *values, size_t m)
{
    (void)c, (void)at, (void)orders, (void)values;
    return n || m ? ERROR : OK;
}
EXPORT Status fmi3DoStep(void *c, double time, double length, _Bool no_set, _Bool *event, _Bool *terminate, _Bool *early,
                         double *last)
{
    const Status found = do_step(c, time, length);
    (void)no_set;
    *event = *terminate = *early = 0;
    *last = ((Instance *)c)->time;
    return found;
}
EXPORT Status fmi3ActivateModelPartition(void *c, Reference at, double time)
{
    (void)c, (void)at, (void)time;
    return ERROR;
}
{% endif %}
