package soak

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

var config = Config{Rounds: 60, Chats: 5, Slots: 3, Context: 1024, Images: true}

func TestSeedReplays(t *testing.T) {
	require.Equal(t, New(7, config), New(7, config))
	require.NotEqual(t, New(7, config).Rounds, New(8, config).Rounds)

	shorter := config
	shorter.Rounds = 20
	require.Equal(t, New(7, config).Rounds[:20], New(7, shorter).Rounds, "a shorter history is the beginning of a longer one")
}

// TestEverythingHappens: a few histories have every kind of request and event, and none that
// their config excludes.
func TestEverythingHappens(t *testing.T) {
	asked, happened := make(map[Kind]int), make(map[Event]int)
	var images, leaves, long int
	for seed := range uint64(5) {
		for i, round := range New(seed, config).Rounds {
			happened[round.Event]++
			require.False(t, i == 0 && round.Event != Nothing, "nothing is there yet that could be lost")
			require.NotEmpty(t, round.Requests)
			require.LessOrEqual(t, len(round.Requests), config.Slots)
			chats := make(map[int]bool)
			for _, r := range round.Requests {
				require.False(t, chats[r.Chat], "two requests of one conversation at a time")
				chats[r.Chat] = true
				require.Less(t, r.Chat, config.Chats)
				require.Equal(t, r.Kind == Regenerate, r.Words == 0)
				require.Positive(t, r.Answer)
				for _, cut := range r.Cuts {
					require.True(t, cut >= 0 && cut < 1)
				}
				for _, after := range r.Leave {
					require.Less(t, after, r.Answer, "the client goes away before the answer is complete")
				}
				asked[r.Kind]++
				if r.Image != 0 {
					images++
				}
				if r.Kind != GiveUp && len(r.Leave) > 0 {
					leaves++
				}
				if r.Words > config.Context {
					long++
				}
			}
		}
	}
	require.Len(t, asked, 6)
	require.Len(t, happened, 1+len(disturbances))
	require.NotZero(t, images)
	require.NotZero(t, leaves)
	require.NotZero(t, long)

	without := config
	without.Images = false
	for _, round := range New(1, without).Rounds {
		for _, r := range round.Requests {
			require.Zero(t, r.Image)
		}
	}
}

// words returns a text that names its arguments.
func words(tokens int, seed int64) string { return fmt.Sprintf("%d of %d", tokens, seed) }

func TestChats(t *testing.T) {
	c := NewChats(1, words)
	system := Message{Role: "system", Text: words(SystemWords, 1)}
	user := func(seed int64) Message { return Message{Role: "user", Text: words(2, seed)} }
	assistant := func(text string) Message { return Message{Role: "assistant", Text: text} }
	ask := func(r Request, answer string, want ...Message) {
		t.Helper()
		r.Chat, r.Words = 4, 2
		require.Equal(t, want, c.Ask(r), "%+v", r)
		c.Answered(r, answer)
	}

	ask(Request{Kind: Start, Seed: 10}, "a", system, user(10))
	ask(Request{Kind: Turn, Seed: 11}, "b", system, user(10), assistant("a"), user(11))
	ask(Request{Kind: Regenerate}, "c", system, user(10), assistant("a"), user(11))
	ask(Request{Kind: GiveUp, Seed: 12}, "lost", system, user(10), assistant("a"), user(11), assistant("c"), user(12))
	ask(Request{Kind: Document, Seed: 13}, "lost", user(13))
	ask(Request{Kind: Turn, Seed: 14}, "d", system, user(10), assistant("a"), user(11), assistant("c"), user(14))
	ask(Request{Kind: Branch, Message: 1, Seed: 15}, "e", system, user(10), assistant("a"), user(15))
	ask(Request{Kind: Branch, Message: 0, Seed: 16}, "f", system, user(16))
	ask(Request{Kind: Start, Seed: 17}, "g", system, user(17))
}

// TestHistoriesCanBeAsked: every request refers to an existing message.
func TestHistoriesCanBeAsked(t *testing.T) {
	for seed := range uint64(20) {
		h := New(seed, config)
		c := NewChats(h.System, words)
		for _, round := range h.Rounds {
			for _, r := range round.Requests {
				messages := c.Ask(r)
				require.Equal(t, "user", messages[len(messages)-1].Role)
				c.Answered(r, "answer")
			}
		}
	}
}
