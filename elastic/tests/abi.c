// The life of a pool, from C: create, allocate, commit, write, uncommit, free, destroy.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvc.h"

static void require(int ok, const char * step) {
    if (!ok) {
        fprintf(stderr, "%s: %s\n", step, kvc_last_error());
        exit(1);
    }
}

int main(void) {
    const size_t mib = 1u << 20;
    kvc_pool_t *   pool   = NULL;
    kvc_buffer_t * buffer = NULL;
    kvc_stats_t    stats;

    require(kvc_pool_create(64 * mib, KVC_CPU, &pool) == KVC_OK, "create");
    require(kvc_buffer_alloc(pool, 16 * mib, &buffer) == KVC_OK, "alloc");
    unsigned char * base = kvc_buffer_get_base(buffer);
    require(base != NULL, "get_base");
    require(base[16 * mib - 1] == 0, "reading memory that is not committed");

    require(kvc_buffer_commit(buffer, 3 * mib, mib + 1) == KVC_OK, "commit");
    memset(base + 3 * mib, 7, mib + 1);
    require(kvc_buffer_committed(buffer, 3 * mib, mib) == 1, "committed");
    require(kvc_buffer_committed(buffer, 2 * mib, 2 * mib) == 0, "not all committed");
    require(kvc_pool_stats(pool, &stats) == KVC_OK && stats.committed_bytes == mib + KVC_GRANULE_CPU_DEFAULT, "stats");

    require(kvc_pool_resize(pool, mib) == KVC_E_OVER, "resize below the memory in use");
    require(base[3 * mib] == 7, "memory in use stays");
    require(kvc_buffer_commit(buffer, 0, 1) == KVC_E_LIMIT, "commit above the limit");
    require(kvc_buffer_uncommit(buffer, 3 * mib, 2 * mib) == KVC_OK, "uncommit");
    require(base[3 * mib] == 0, "memory comes back as zeros");
    require(kvc_buffer_commit(buffer, 0, mib) == KVC_OK, "commit up to the limit");

    require(kvc_pool_destroy(pool) == KVC_E_BUSY, "destroy with a buffer");
    require(kvc_buffer_free(buffer) == KVC_OK, "free");
    require(kvc_buffer_free(buffer) == KVC_E_INVALID && strstr(kvc_last_error(), "buffer") != NULL, "free twice");
    require(kvc_pool_destroy(pool) == KVC_OK, "destroy");
    require(kvc_pool_destroy(pool) == KVC_E_INVALID, "destroy twice");
    require(kvc_pool_create(mib, 0, &pool) == KVC_E_NO_VMM || getenv("KVC_CUDA_LIBRARY") != NULL || pool != NULL, "a machine without a driver");
    require(pool == NULL || kvc_pool_destroy(pool) == KVC_OK, "destroy");
    puts("ok");
    return 0;
}
