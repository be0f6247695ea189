/* The model as a functional mock-up unit, version {{ version_of_fmi }}, for Model Exchange and Co-Simulation.

   Written for the interface of the FMI standard (https://fmi-standard.org). Value references: 0 is the time; then come
   the states, their derivatives, the inputs, what is predicted{{ ', and doses, which are added to the states once' if doses else '' }}. */
#include "model.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define N MODEL_ALL_STATES
#define I MODEL_INPUTS
#define ROOM (I > 0 ? I : 1)
#define FIRST_RATE (1 + N)
#define FIRST_INPUT (1 + 2 * N)
#define FIRST_COLUMN (1 + 2 * N + I)
#define FIRST_DOSE (FIRST_COLUMN + MODEL_COLUMNS)
#define END (FIRST_DOSE + {{ "N" if doses else "0" }})

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
    double doses[N]; /* what is added to the states at the next event, or at the beginning of a step */
} Instance;

static const double start[N] = { {{ start }} }, nominal[N] = { {{ nominal }} };
static const double first_inputs[ROOM] = { {{ first_inputs }} };

static void reset(Instance *own)
{
    memset(own, 0, sizeof *own);
    memcpy(own->states, start, sizeof start);
    memcpy(own->inputs, first_inputs, sizeof first_inputs);
}

static void *instantiate(const char *token)
{
    Instance *own = token && strcmp(token, MODEL_DIGEST) == 0 ? malloc(sizeof *own) : NULL;
    if (own)
        reset(own);
    return own;
}

static Status get(const Instance *own, const Reference *at, size_t count, double *values)
{
    double rates[N], columns[MODEL_COLUMNS];
    int has_rates = 0, has_columns = 0;
    for (size_t i = 0; i < count; i++) {
        const Reference place = at[i];
        if (place == 0) {
            values[i] = own->time;
        } else if (place < FIRST_RATE) {
            values[i] = own->states[place - 1];
        } else if (place < FIRST_INPUT) {
            if (!has_rates)
                model_field(own->time, own->states, own->inputs, rates);
            has_rates = 1;
            values[i] = rates[place - FIRST_RATE];
        } else if (place < FIRST_COLUMN) {
            values[i] = own->inputs[place - FIRST_INPUT];
        } else if (place < FIRST_DOSE) {
            if (!has_columns)
                model_observe(own->states, columns);
            has_columns = 1;
            values[i] = columns[place - FIRST_COLUMN];
        } else if (place < END) {
            values[i] = own->doses[place - FIRST_DOSE];
        } else {
            return ERROR;
        }
    }
    return OK;
}

static Status set(Instance *own, const Reference *at, size_t count, const double *values)
{
    for (size_t i = 0; i < count; i++) {
        const Reference place = at[i];
        if (place >= 1 && place < FIRST_RATE)
            own->states[place - 1] = values[i];
        else if (place >= FIRST_INPUT && place < FIRST_COLUMN)
            own->inputs[place - FIRST_INPUT] = values[i];
        else if (place >= FIRST_DOSE && place < END)
            own->doses[place - FIRST_DOSE] = values[i];
        else
            return ERROR;
    }
    return OK;
}

/* Adds what is due to the states; whether that was something. */
static int add_doses(Instance *own)
{
    int found = 0;
    for (int i = 0; i < N; i++) {
        found |= own->doses[i] < 0 || own->doses[i] > 0;
        own->states[i] += own->doses[i];
        own->doses[i] = 0;
    }
    return found;
}

/* Derivatives by the states, of their derivatives. */
static Status directional(Instance *own, const Reference *unknown, size_t unknowns, const Reference *known, size_t knowns,
                          const double *seed, double *found)
{
    double matrix[N * MODEL_STATES];
    model_jacobian(own->time, own->states, own->inputs, matrix);
    for (size_t i = 0; i < unknowns; i++) {
        found[i] = 0;
        for (size_t k = 0; k < knowns; k++) {
            const long row = (long)unknown[i] - FIRST_RATE, column = (long)known[k] - 1;
            if (row < 0 || row >= N || column < 0 || column >= N)
                return ERROR;
            if (row / MODEL_STATES == column / MODEL_STATES)
                found[i] += matrix[row * MODEL_STATES + column % MODEL_STATES] * seed[k];
        }
    }
    return OK;
}

static Status do_step(Instance *own, double time, double length)
{
    double ends[ROOM];
    add_doses(own);
    for (int i = 0; i < I; i++)
        ends[i] = own->inputs[i] + length * own->slopes[i];
    model_step(time, length, own->inputs, ends, own->states);
    own->time = time + length;
    for (int i = 0; i < N; i++)
        if (!isfinite(own->states[i]))
            return ERROR;
    return OK;
}

static Status set_slopes(Instance *own, const Reference *at, size_t count, const int *orders, const double *values)
{
    for (size_t i = 0; i < count; i++) {
        if (at[i] < FIRST_INPUT || at[i] >= FIRST_COLUMN || orders[i] != 1)
            return ERROR;
        own->slopes[at[i] - FIRST_INPUT] = values[i];
    }
    return OK;
}

static Status copy_to(const Instance *own, void **copy)
{
    if (!*copy)
        *copy = malloc(sizeof *own);
    if (!*copy)
        return ERROR;
    memcpy(*copy, own, sizeof *own);
    return OK;
}

{% if version_of_fmi == "2.0" %}
EXPORT const char *fmi2GetTypesPlatform(void) { return "default"; }
EXPORT const char *fmi2GetVersion(void) { return "2.0"; }
EXPORT void *fmi2Instantiate(const char *name, int kind, const char *token, const char *place, const void *functions,
                             int visible, int logging)
{
    (void)name, (void)kind, (void)place, (void)functions, (void)visible, (void)logging;
    return instantiate(token);
}
EXPORT void fmi2FreeInstance(void *c) { free(c); }
EXPORT Status fmi2SetDebugLogging(void *c, int on, size_t n, const char *const names[])
{
    (void)c, (void)on, (void)n, (void)names;
    return OK;
}
EXPORT Status fmi2SetupExperiment(void *c, int has_tolerance, double tolerance, double begin, int has_end, double end)
{
    (void)has_tolerance, (void)tolerance, (void)has_end, (void)end;
    ((Instance *)c)->time = begin;
    return OK;
}
{% for name in ["EnterInitializationMode", "ExitInitializationMode", "Terminate", "EnterEventMode", "EnterContinuousTimeMode", "CancelStep"] %}
EXPORT Status fmi2{{ name }}(void *c) { (void)c; return OK; }
{% endfor %}
EXPORT Status fmi2Reset(void *c) { reset(c); return OK; }
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
EXPORT Status fmi2GetFMUstate(void *c, void **copy) { return copy_to(c, copy); }
EXPORT Status fmi2SetFMUstate(void *c, void *copy) { memcpy(c, copy, sizeof(Instance)); return OK; }
EXPORT Status fmi2FreeFMUstate(void *c, void **copy) { (void)c; free(*copy); *copy = NULL; return OK; }
EXPORT Status fmi2SerializedFMUstateSize(void *c, void *copy, size_t *size)
{
    (void)c, (void)copy;
    *size = sizeof(Instance);
    return OK;
}
EXPORT Status fmi2SerializeFMUstate(void *c, void *copy, char *bytes, size_t size)
{
    (void)c;
    if (size < sizeof(Instance))
        return ERROR;
    memcpy(bytes, copy, sizeof(Instance));
    return OK;
}
EXPORT Status fmi2DeSerializeFMUstate(void *c, const char *bytes, size_t size, void **copy)
{
    (void)c;
    if (size < sizeof(Instance) || (!*copy && !(*copy = malloc(sizeof(Instance)))))
        return ERROR;
    memcpy(*copy, bytes, sizeof(Instance));
    return OK;
}
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
    events->states_changed = add_doses(c);
    return OK;
}
EXPORT Status fmi2CompletedIntegratorStep(void *c, int no_set, int *enter_events, int *terminate)
{
    (void)c, (void)no_set;
    *enter_events = *terminate = 0;
    return OK;
}
EXPORT Status fmi2SetTime(void *c, double time) { ((Instance *)c)->time = time; return OK; }
EXPORT Status fmi2SetContinuousStates(void *c, const double *x, size_t n)
{
    memcpy(((Instance *)c)->states, x, n * sizeof *x);
    return n == N ? OK : ERROR;
}
EXPORT Status fmi2GetDerivatives(void *c, double *rates, size_t n)
{
    const Instance *own = c;
    model_field(own->time, own->states, own->inputs, rates);
    return n == N ? OK : ERROR;
}
EXPORT Status fmi2GetEventIndicators(void *c, double *values, size_t n)
{
    (void)c, (void)values;
    return n ? ERROR : OK;
}
EXPORT Status fmi2GetContinuousStates(void *c, double *x, size_t n)
{
    memcpy(x, ((Instance *)c)->states, n * sizeof *x);
    return n == N ? OK : ERROR;
}
EXPORT Status fmi2GetNominalsOfContinuousStates(void *c, double *x, size_t n)
{
    (void)c;
    memcpy(x, nominal, n * sizeof *x);
    return n == N ? OK : ERROR;
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
EXPORT const char *fmi3GetVersion(void) { return "3.0"; }
EXPORT Status fmi3SetDebugLogging(void *c, _Bool on, size_t n, const char *const names[])
{
    (void)c, (void)on, (void)n, (void)names;
    return OK;
}
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
EXPORT void fmi3FreeInstance(void *c) { free(c); }
EXPORT Status fmi3EnterInitializationMode(void *c, _Bool has_tolerance, double tolerance, double begin, _Bool has_end,
                                          double end)
{
    (void)has_tolerance, (void)tolerance, (void)has_end, (void)end;
    ((Instance *)c)->time = begin;
    return OK;
}
{% for name in ["ExitInitializationMode", "EnterEventMode", "Terminate", "EnterContinuousTimeMode", "EnterStepMode", "EnterConfigurationMode", "ExitConfigurationMode", "EvaluateDiscreteStates"] %}
EXPORT Status fmi3{{ name }}(void *c) { (void)c; return OK; }
{% endfor %}
EXPORT Status fmi3Reset(void *c) { reset(c); return OK; }
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
EXPORT Status fmi3GetFMUState(void *c, void **copy) { return copy_to(c, copy); }
EXPORT Status fmi3SetFMUState(void *c, void *copy) { memcpy(c, copy, sizeof(Instance)); return OK; }
EXPORT Status fmi3FreeFMUState(void *c, void **copy) { (void)c; free(*copy); *copy = NULL; return OK; }
EXPORT Status fmi3SerializedFMUStateSize(void *c, void *copy, size_t *size)
{
    (void)c, (void)copy;
    *size = sizeof(Instance);
    return OK;
}
EXPORT Status fmi3SerializeFMUState(void *c, void *copy, unsigned char *bytes, size_t size)
{
    (void)c;
    if (size < sizeof(Instance))
        return ERROR;
    memcpy(bytes, copy, sizeof(Instance));
    return OK;
}
EXPORT Status fmi3DeserializeFMUState(void *c, const unsigned char *bytes, size_t size, void **copy)
{
    (void)c;
    if (size < sizeof(Instance) || (!*copy && !(*copy = malloc(sizeof(Instance)))))
        return ERROR;
    memcpy(*copy, bytes, sizeof(Instance));
    return OK;
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
    *states_changed = add_doses(c) != 0;
    return OK;
}
EXPORT Status fmi3CompletedIntegratorStep(void *c, _Bool no_set, _Bool *enter_events, _Bool *terminate)
{
    (void)c, (void)no_set;
    *enter_events = *terminate = 0;
    return OK;
}
EXPORT Status fmi3SetTime(void *c, double time) { ((Instance *)c)->time = time; return OK; }
EXPORT Status fmi3SetContinuousStates(void *c, const double *x, size_t n)
{
    memcpy(((Instance *)c)->states, x, n * sizeof *x);
    return n == N ? OK : ERROR;
}
EXPORT Status fmi3GetContinuousStateDerivatives(void *c, double *rates, size_t n)
{
    const Instance *own = c;
    model_field(own->time, own->states, own->inputs, rates);
    return n == N ? OK : ERROR;
}
EXPORT Status fmi3GetEventIndicators(void *c, double *values, size_t n)
{
    (void)c, (void)values;
    return n ? ERROR : OK;
}
EXPORT Status fmi3GetContinuousStates(void *c, double *x, size_t n)
{
    memcpy(x, ((Instance *)c)->states, n * sizeof *x);
    return n == N ? OK : ERROR;
}
EXPORT Status fmi3GetNominalsOfContinuousStates(void *c, double *x, size_t n)
{
    (void)c;
    memcpy(x, nominal, n * sizeof *x);
    return n == N ? OK : ERROR;
}
EXPORT Status fmi3GetNumberOfEventIndicators(void *c, size_t *n) { (void)c; *n = 0; return OK; }
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
    (void)no_set, (void)set_slopes;
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
