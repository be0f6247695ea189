/* Reads records from standard input as CSV, simulates them, and writes what is predicted to standard output.

   cc -std=c99 -O2 main.c model.c -lm -o model
   ./model < record.csv > predicted.csv

   Columns are found by their names in the first line: the time, the channels (their first values give the start; later
   ones may be empty), the inputs, and if there are several records, trajectory, whose rows follow each other. Further
   columns are optional: "start NAME" gives the start of a state (those of all states are needed, in the first row of a
   record), and "add NAME" and "multiply NAME" change a state just after a row. Returns 0; 1 with a sentence if the
   records are wrong; 2 if one can't be simulated to its end, whose missing predictions are left empty. */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef MOST_ROWS
#define MOST_ROWS 20000 /* of one record */
#endif
#define MOST_COLUMNS 1024
#define LONGEST_LINE 65536
#define LONGEST_NAME 256
#define ROOM (MODEL_INPUTS > 0 ? MODEL_INPUTS : 1)

static double ts[MOST_ROWS];
static model_real us[MOST_ROWS * ROOM], ys[MOST_ROWS * MODEL_CHANNELS], columns[MOST_ROWS * MODEL_COLUMNS];
static model_real start[MODEL_ALL_STATES], factor[MOST_ROWS * MODEL_ALL_STATES], shift[MOST_ROWS * MODEL_ALL_STATES];
static char line[LONGEST_LINE], header[LONGEST_LINE], name[LONGEST_NAME], text[MOST_ROWS][32];
static char *fields[MOST_COLUMNS];
static int rows = 0, begins = 0, jumps = 0, failed = 0;

static void end(const char *said, long number)
{
    fprintf(stderr, "error: %s", said);
    if (number > 0)
        fprintf(stderr, " (line %ld)", number);
    fputc('\n', stderr);
    exit(1);
}

/* Cuts a line into its fields, of which quotes may enclose one; returns their number. */
static int cut(char *at)
{
    int count = 0;
    at[strcspn(at, "\r\n")] = '\0';
    for (;;) {
        char *to = at;
        if (count == MOST_COLUMNS)
            end("too many columns; set MOST_COLUMNS", 0);
        fields[count++] = at;
        if (*at == '"') {
            for (at++; *at && (*at != '"' || at[1] == '"'); at++) {
                if (*at == '"')
                    at++;
                *to++ = *at;
            }
            if (*at == '"')
                at++;
        }
        while (*at && *at != ',')
            *to++ = *at++;
        if (!*at) {
            *to = '\0';
            return count;
        }
        at++;
        *to = '\0';
    }
}

static int find(int count, const char *before, const char *wanted)
{
    const size_t length = strlen(before);
    for (int i = 0; i < count; i++)
        if (strncmp(fields[i], before, length) == 0 && strcmp(fields[i] + length, wanted) == 0)
            return i;
    return -1;
}

static int needed(int count, const char *wanted)
{
    const int found = find(count, "", wanted);
    if (found < 0) {
        fprintf(stderr, "error: there is no column %s\n", wanted);
        exit(1);
    }
    return found;
}

static double number(const char *given, double absent, long where)
{
    char *rest;
    double found;
    if (!*given)
        return absent;
    found = strtod(given, &rest);
    if (rest == given || *rest)
        end("a field is not a number", where);
    return found;
}

static void write_name(const char *given)
{
    if (strpbrk(given, ",\"\n") == NULL) {
        fputs(given, stdout);
        return;
    }
    putchar('"');
    for (; *given; given++) {
        if (*given == '"')
            putchar('"');
        putchar(*given);
    }
    putchar('"');
}

static void simulate(int has_names)
{
    if (rows == 0)
        return;
    failed |= model_simulate(rows, ts, us, ys, begins ? start : NULL, jumps ? factor : NULL, jumps ? shift : NULL, columns, NULL);
    for (int row = 0; row < rows; row++) {
        if (has_names) {
            write_name(name);
            putchar(',');
        }
        fputs(text[row], stdout);
        for (int i = 0; i < MODEL_COLUMNS; i++) {
            const double value = (double)columns[row * MODEL_COLUMNS + i];
            putchar(',');
            if (isfinite(value))
                printf("%.{{ digits }}g", value);
        }
        putchar('\n');
    }
    rows = begins = jumps = 0;
}

int main(void)
{
    int time, names, count, channel[MODEL_CHANNELS], input[ROOM];
    int begin[MODEL_ALL_STATES], add[MODEL_ALL_STATES], multiply[MODEL_ALL_STATES];
    long at = 1;
    if (!fgets(header, sizeof header, stdin))
        end("there is no line of column names", 0);
    count = cut(header);
    time = needed(count, model_time_name);
    names = find(count, "", "trajectory");
    for (int i = 0; i < MODEL_CHANNELS; i++)
        channel[i] = needed(count, model_channel_names[i]);
    for (int i = 0; i < MODEL_INPUTS; i++)
        input[i] = needed(count, model_input_names[i]);
    for (int i = 0; i < MODEL_ALL_STATES; i++) {
        begin[i] = find(count, "start ", model_state_names[i]);
        add[i] = find(count, "add ", model_state_names[i]);
        multiply[i] = find(count, "multiply ", model_state_names[i]);
    }
    if (names >= 0)
        fputs("trajectory,", stdout);
    write_name(model_time_name);
    for (int i = 0; i < MODEL_COLUMNS; i++) {
        putchar(',');
        write_name(model_column_names[i]);
    }
    putchar('\n');
    while (fgets(line, sizeof line, stdin)) {
        at++;
        if (!strchr(line, '\n') && !feof(stdin))
            end("the line is too long; set LONGEST_LINE", at);
        if (strspn(line, " \r\n") == strlen(line))
            continue;
        if (cut(line) != count)
            end("a row has another number of fields than the first line", at);
        if (names >= 0 && rows > 0 && strcmp(name, fields[names]) != 0)
            simulate(1);
        if (rows == MOST_ROWS)
            end("a record has too many rows; compile with a larger -DMOST_ROWS", at);
        if (names >= 0) {
            strncpy(name, fields[names], LONGEST_NAME - 1);
            fields[names][LONGEST_NAME - 1 < (int)strlen(fields[names]) ? LONGEST_NAME - 1 : (int)strlen(fields[names])] = '\0';
        }
        strncpy(text[rows], fields[time], sizeof text[rows] - 1);
        ts[rows] = number(fields[time], (double)NAN, at);
        if (!isfinite(ts[rows]) || (rows > 0 && ts[rows] <= ts[rows - 1]))
            end("the time must increase from row to row", at);
        for (int i = 0; i < MODEL_CHANNELS; i++)
            ys[rows * MODEL_CHANNELS + i] = (model_real)number(fields[channel[i]], (double)NAN, at);
        for (int i = 0; i < MODEL_INPUTS; i++) {
            us[rows * ROOM + i] = (model_real)number(fields[input[i]], (double)NAN, at);
            if (!isfinite(us[rows * ROOM + i]))
                end("an input is absent or not finite; fill it in", at);
        }
        for (int i = 0; i < MODEL_ALL_STATES; i++) {
            if (rows == 0) {
                start[i] = (model_real)(begin[i] < 0 ? (double)NAN : number(fields[begin[i]], (double)NAN, at));
                begins = (i == 0 || begins) && isfinite(start[i]);
            }
            shift[rows * MODEL_ALL_STATES + i] = (model_real)(add[i] < 0 ? 0 : number(fields[add[i]], 0, at));
            factor[rows * MODEL_ALL_STATES + i] = (model_real)(multiply[i] < 0 ? 1 : number(fields[multiply[i]], 1, at));
            jumps |= add[i] >= 0 || multiply[i] >= 0;
        }
        rows++;
    }
    simulate(names >= 0);
    if (failed)
        fputs("error: a record can't be simulated to its end; what is missing is left empty\n", stderr);
    return failed ? 2 : 0;
}
