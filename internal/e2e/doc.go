// Package e2e tests a built, patched Ollama from outside: real server, real runner, real
// page files.
//
// The tests need build/ollama/bin/ollama (make build), or the executable that
// KVTIER_OLLAMA names, and skip without one. The tests compare log probabilities at full
// precision: a restored conversation must give the same bits as a slot that was never
// evicted. Requests run one at a time, so that both sides compute the same batches. Tests
// with parallel requests use a bound instead, the difference between two stock servers.
//
// # Promises
//
// Restored log probabilities equal those of a slot that was never evicted, to the last bit
// on the same devices, for every cache type, after another chat, an unload and kill -9, with
// poisoned cells: TestRestoredLogitsAreBitIdentical.
//
// The same holds for every architecture (windows, chunks, shared rows, recurrent state),
// after a shift, and with images: TestEveryArchitectureRestores, TestEveryArchitectureShifts,
// TestImagesComeBackByContent, TestTextBehindAnImage.
//
// Pages that move down become lossy only if the user asks for it. Answers behind them are
// near and marked, and nothing behind them is stored: TestColdPages.
//
// The cost of computing outlives restarts. A tier known to be slow is not read, and one that
// hangs is given up: TestRatesOutliveTheRunner, TestRemoteThatHangsIsGivenUp.
//
// A changed identity finds nothing: TestChangedIdentityMisses.
//
// A damaged page is set aside and computed again: TestDamagedPagesAreQuarantined.
//
// Two servers share both tiers, and one is killed beside the other; two servers cannot have
// one id: TestTwoServersShareBothTiers, TestServerIsKilledBesideAnother,
// TestSecondServerWithOneIDRefuses.
//
// ollama rm removes a model's pages, and only those: TestRemovedModelLeavesNoPages,
// TestRemovedNameKeepsPagesOfTheOther, TestRemovedWhileItAnswers, and TestForgottenAfterAKill
// of kvcache/tiering.
//
// In random histories of users and failures answers equal those of a stock server: to the
// last bit one at a time, within 0.03 with four slots: TestSoakSerial, TestSoakParallel.
//
// Every pair of optional features works, or is refused: TestSoakPairs, and
// TestRandomInterleavingsOfPairs of kvcache.
//
// Reported numbers and causes are those of the workload, over SIGKILL of server and runner:
// TestTelemetryOfAWorkload, TestTelemetryOfDemotions, TestCausesOfMisses,
// TestCausesOfSlowTiers, TestCausesOfOtherModels, TestCauseOfAnotherImage, TestCauseOfAShift.
//
// Text of prompts leaves by kvtier why alone, for its owner: TestNoTextLeaves.
//
// The first hour can be followed to the letter: TestFirstHour. Unset means off:
// TestOffMeansOff.
//
// Package torture shows the same after field bugs of other caches, and while pages are
// damaged, exchanged and evicted at random.
package e2e
