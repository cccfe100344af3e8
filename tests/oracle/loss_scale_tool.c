/* loss_scale_tool.c - the loss scale for a row of overflows, for a comparison with DeepSpeed and torch.
 *
 *   oracle_loss_scale_tool < cases        one line per case: RULE INITIAL MIN WINDOW HYSTERESIS CONSECUTIVE 0010 (1 = overflow)
 *
 * Prints one line per case: the scale and the remaining hysteresis after each boundary as "65536:2"; `abort` where the run ends. */
#include "config/loss_scale.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void run_case(const ls_loss_scale_config *cfg, const char *overflow)
{
    ls_loss_scale s = ls_loss_scale_init(cfg);
    for (; *overflow == '0' || *overflow == '1'; overflow++) {
        if (ls_loss_scale_update(&s, *overflow == '1') != LS_OK) {
            printf(" abort");
            break;
        }
        printf(" %.17g:%" PRId64, s.scale, s.hysteresis);
    }
    printf("\n");
}

int main(void)
{
    static char line[1 << 16];
    while (fgets(line, sizeof line, stdin)) {
        ls_loss_scale_config c = {0};
        char rule[16];
        int consecutive = 0, at = 0, r = 0;
        if (sscanf(line, "%15s %lf %lf %" SCNd64 " %" SCNd64 " %d %n", rule, &c.initial, &c.min, &c.window,
                   &c.hysteresis, &consecutive, &at) != 6)
            return 2;
        while (r <= LS_SCALE_AMP && strcmp(rule, ls_scale_rule_word((ls_scale_rule)r))) r++;
        if (r > LS_SCALE_AMP) return 2;
        c.rule = (ls_scale_rule)r;
        c.consecutive = consecutive;
        run_case(&c, line + at);
    }
    return 0;
}
