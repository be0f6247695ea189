/* A model that node_fit {{ version }} fitted, as C99. See README.md. */
#ifndef MODEL_H
#define MODEL_H

typedef {{ real }} model_real;

#define MODEL_DIGEST "{{ digest }}"
#define MODEL_MEMBERS {{ members }} /* models of an ensemble */
#define MODEL_STATES {{ latent|length }} /* states of each of them */
#define MODEL_ALL_STATES {{ states|length }}
#define MODEL_CHANNELS {{ channels|length }} /* what was measured */
#define MODEL_INPUTS {{ inputs|length }}
#define MODEL_COLUMNS {{ columns|length }} /* what is predicted: channels{% if combined %}, lower edges, upper edges{% endif %} */
#define MODEL_TRIGGERS {{ triggers }} /* of each member: levels at which its states jump */

extern const char *const model_time_name;
extern const char *const model_state_names[];
extern const char *const model_channel_names[];
extern const char *const model_input_names[];
extern const char *const model_column_names[];

/* All of these take and return the units of the data. Times are doubles, since a float has no room for the steps late in
   a long record. Arrays of states hold the states of one member after another's. Nothing is kept between two calls. */

/* The time derivatives of the states at a time, for inputs u. */
void model_field(double t, const model_real *y, const model_real *u, model_real *rates);

/* The derivatives of model_field by the states: for each member a matrix, row after row. */
void model_jacobian(double t, const model_real *y, const model_real *u, model_real *matrix);

/* Goes on from t to t + h, in so many steps as the accuracy needs. The inputs are u at t, and {% if degree == 0 %}stay so; v is not read.{% elif degrees | min == 0 %}those that are held
   stay so; the others are v at t + h, and on a line between.{% else %}v at t + h, and on a line between.{% endif %} */
void model_step(double t, double h, const model_real *u, const model_real *v, model_real *y);

/* The states just after they become factor * y + shift at a time{% if triggers %}, and after the triggers that this sets off{% endif %}. NULL stands for factors of one,
   and for shifts of zero. */
void model_jump(double t, const model_real *u, const model_real *factor, const model_real *shift, model_real *y);
{% if triggers %}

/* The levels of the triggers of all members, which act as their level falls through zero. model_step and model_simulate
   watch them; these two serve a solver of your own. */
void model_levels(double t, const model_real *u, const model_real *y, model_real *level);

/* The states just after a trigger has acted. */
void model_trigger(double t, const model_real *u, int which, model_real *y);
{% endif %}

{% if observes %}
/* What is predicted at a time, inputs and states. */
void model_observe(double t, const model_real *u, const model_real *y, model_real *columns);
{% else %}
/* What is predicted at some states. */
void model_observe(const model_real *y, model_real *columns);
{% endif %}

/* The states at the start of a record, from its rows: times, inputs (row after row), channels (row after row; NAN where
   not measured). Returns the number of the row at which it starts. */
int model_start(int rows, const double *t, const model_real *u, const model_real *y, model_real *states);

/* Simulates a record. start: the states at the first row; NULL if model_start gives them. Just after a row, a state
   becomes factor * state + shift (for each row MODEL_ALL_STATES numbers; NULL for none). columns: MODEL_COLUMNS for each
   row, NAN before the start. states: MODEL_ALL_STATES for each row, or NULL. Returns 0, or 1 if a number is not finite. */
int model_simulate(int rows, const double *t, const model_real *u, const model_real *y, const model_real *start,
                   const model_real *factor, const model_real *shift, model_real *columns, model_real *states);

#endif
