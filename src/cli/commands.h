/* commands.h - the commands, one file each. argv holds the words after the command's name. */
#ifndef LS_CLI_COMMANDS_H
#define LS_CLI_COMMANDS_H

#include "core/err.h"
#include "core/opt.h"
#include "config/device_choice.h"

ls_status cmd_prepare(int argc, char **argv);
ls_status cmd_train(int argc, char **argv);
ls_status cmd_eval(int argc, char **argv);
ls_status cmd_generate(int argc, char **argv);
ls_status cmd_export(int argc, char **argv);
ls_status cmd_import(int argc, char **argv);
ls_status cmd_verify(int argc, char **argv);
ls_status cmd_bench(int argc, char **argv);
ls_status cmd_plan(int argc, char **argv);
ls_status cmd_report(int argc, char **argv);
ls_status cmd_profile(int argc, char **argv);
ls_status cmd_doctor(int argc, char **argv);

/* Writes out what stdout holds. LS_E_IO when anything that this process printed was lost, now or before; main asks it for every command. */
ls_status cli_flush(void);
/* As ls_status_words; for a run that was stopped, the text names the signal. */
const char *cli_status_words(ls_status st);
/* Prints "lockstep: [rank N: ]<kind>: <message>" of this thread's last failure to stderr, without the rank if it is
 * negative. The call trace follows only if LS_LOG sets the level of the subsystem "error" to debug or trace. */
void cli_print_error(int rank, ls_status st);
/* The first line of a command's output, on stderr: where --device auto computes, and why. Nothing where the user said where. */
void cli_say_device(const ls_device_choice *d);
/* Prints usage, text and the option table to stdout. */
void cli_help(const char *usage, const char *text, const ls_opt *table, size_t n);

#endif
