// The race detector of the emulated GPU.
#include <gtest/gtest.h>

#include <thread>

#include "emulator/access.h"

namespace {

using emulator::access_log;

struct access_order : testing::Test {
    access_log log;
    char       memory[100] = {};

    std::string use(uint32_t stream, size_t first, size_t n, bool write) {
        log.enqueue(stream);
        return log.touch(stream, memory + first, n, write, "a test");
    }
};

TEST_F(access_order, one_stream_orders_itself) {
    EXPECT_EQ(use(0, 0, 10, true), "");
    EXPECT_EQ(use(0, 5, 10, true), "");
    EXPECT_EQ(use(0, 0, 20, false), "");
}

TEST_F(access_order, two_streams_race) {
    EXPECT_EQ(use(0, 0, 10, true), "");
    EXPECT_NE(use(1, 9, 1, false), "");
    EXPECT_EQ(use(1, 10, 5, true), "");
    EXPECT_NE(use(2, 14, 20, true), "");
}

TEST_F(access_order, reads_do_not_race_with_reads) {
    EXPECT_EQ(use(0, 0, 10, false), "");
    EXPECT_EQ(use(1, 0, 10, false), "");
    EXPECT_NE(use(2, 0, 10, true), "");
}

TEST_F(access_order, events_order_streams_and_what_came_before) {
    EXPECT_EQ(use(0, 0, 10, true), "");
    log.pass(1, log.at(0));
    EXPECT_EQ(use(1, 0, 10, true), "");
    log.pass(2, log.at(1));
    EXPECT_EQ(use(2, 0, 10, true), "");
    // But not accesses after the event.
    EXPECT_EQ(use(2, 20, 10, true), "");
    EXPECT_NE(use(1, 20, 10, false), "");
}

TEST_F(access_order, a_thread_that_waited_orders_what_it_enqueues_and_no_other_does) {
    EXPECT_EQ(use(0, 0, 10, true), "");
    EXPECT_EQ(use(0, 50, 10, true), "");
    std::thread([&] {
        log.pass_to_host(log.at(0));
        EXPECT_EQ(use(1, 0, 10, false), "");
    }).join();
    EXPECT_NE(use(2, 50, 10, false), "");
}

TEST_F(access_order, a_covered_read_is_not_forgotten_by_a_read) {
    EXPECT_EQ(use(0, 0, 10, false), "");
    log.pass(1, log.at(0));
    EXPECT_EQ(use(1, 0, 10, false), "");
    log.pass(2, log.at(0));
    EXPECT_NE(use(2, 0, 10, true), "");  // with the read of stream 1
}

} // namespace
