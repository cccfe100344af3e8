/* cmd_plan.c - `lockstep plan`: which half of it is asked for. */
#include "cli/commands.h"
#include "cli/plan.h"

#include <string.h>

static bool has(int argc, char **argv, const char *name)
{
    const size_t n = strlen(name);
    for (int i = 0; i < argc; i++)
        if (!strncmp(argv[i], name, n) && (!argv[i][n] || argv[i][n] == '=')) return true;
    return false;
}

ls_status cmd_plan(int argc, char **argv)
{
    return has(argc, argv, "--schedule") ? plan_schedule(argc, argv) : plan_layouts(argc, argv);
}
