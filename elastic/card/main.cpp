// elastic_card tests the library on a CUDA device, with the driver there is: random histories whose
// every granule is read back, while the device works. Then it measures commits. Prints JSON, a line
// each; exits with 1 where a granule held wrong bytes or the driver refused something.
//
//   elastic_card [SECONDS]     default 10; KVC_SEED chooses the histories
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "costs.h"
#include "history.h"

int main(int argc, char ** argv) {
    const double seconds = argc > 1 ? atof(argv[1]) : 10;
    const char * seed    = getenv("KVC_SEED");
    card::Device device(0);
    const card::Played p = card::play(device, seed != nullptr ? strtoull(seed, nullptr, 10) : 1, seconds);
    printf("{\"figure\":\"elastic_histories\",\"steps\":%llu,\"commits\":%llu,\"uncommits\":%llu,\"granules_read\":%llu,\"wrong\":\"%s\"}\n",
           (unsigned long long) p.steps, (unsigned long long) p.commits, (unsigned long long) p.uncommits,
           (unsigned long long) p.granules_read, p.wrong);
    if (p.wrong[0] != '\0') {
        return 1;
    }
    for (bool bare : {false, true}) {
        for (size_t granules : {size_t(1), size_t(8), size_t(32)}) {
            const card::Costs c = card::measure(device, granules, bare);
            if (c.commit_us == 0) {
                continue;
            }
            printf("{\"figure\":\"elastic_commit\",\"bare\":%s,\"granule_bytes\":%zu,\"granules\":%zu,\"commit_us\":%.1f,\"commit_prealloc_us\":%.1f,\"uncommit_us\":%.1f}\n",
                   bare ? "true" : "false", c.granule_bytes, c.granules, c.commit_us, c.kept_us, c.uncommit_us);
        }
    }
    return 0;
}
