/* Any bytes as a schedule: reading gives a schedule or an error message. A schedule can be written and read again, the checker
 * accepts any list as input, and the simulator any list that passed the check. */
#include "fuzz.h"
#include "parallel/schedule_check.h"
#include "parallel/schedule_text.h"
#include "parallel/simulate.h"

#include "core/mem.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    ls_schedule *s = NULL, *again = NULL;
    if (ls_schedule_read(&s, (const char *)data, n, "fuzz") != LS_OK) {
        LS_ASSERT(*ls_err_words() && !s);
        return 0;
    }
    ls_str a = {0}, b = {0};
    ls_schedule_write(s, &a);
    LS_ASSERT(ls_schedule_read(&again, a.data, a.len, "again") == LS_OK);
    ls_schedule_write(again, &b);
    LS_ASSERT(a.len == b.len && !memcmp(a.data, b.data, a.len));
    ls_sim sim = {0};
    const ls_status check = ls_schedule_check(s), run = check == LS_OK ? ls_simulate(&sim, s, NULL, 1) : check;
    LS_ASSERT(check == LS_OK || check == LS_E_CONFIG);
    LS_ASSERT(run == LS_OK || run == LS_E_CONFIG);
    ls_sim_fini(&sim);
    int least = 0;
    if (check == LS_OK) LS_ASSERT(ls_schedule_mailbox(s, &least) == LS_OK && least >= 1);
    ls_str_fini(&a);
    ls_str_fini(&b);
    ls_schedule_destroy(&s);
    ls_schedule_destroy(&again);
    return 0;
}
