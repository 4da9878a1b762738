package why

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// A clock in the system prompt changes in every request.
func TestBuster(t *testing.T) {
	r := NewRecents()
	head, tail := tokens(1, 61), tokens(2, 400)
	for minute := range int32(4) {
		require.Len(t, r.Busters(), min(1, int(max(0, minute-2))), minute)
		ask(r, join(head, []int32{9, 9, minute, 9 + minute}, tail, tokens(uint64(10+minute), 20)), false, 61)
	}
	found := r.Busters()
	require.Len(t, found, 1)
	require.Equal(t, []int{63, 65, 3, 3 * 400}, []int{found[0].Begin, found[0].End, found[0].Prompts, found[0].Lost})
	require.Equal(t, []int32{2, 11}, found[0].Words.Was[8:10])
	require.Equal(t, []int32{3, 12}, found[0].Words.Is[8:10])
	ask(r, join(head, []int32{9, 9, 3, 12}, tail, tokens(30, 20)), false, 400)
	require.Empty(t, r.Busters(), "it did not change")
}

// A chat with other text before the place, between the requests with the clock, does not end the row.
func TestBusterBesideAChat(t *testing.T) {
	r := NewRecents()
	head, tail := tokens(1, 61), tokens(2, 400)
	chat := join(tokens(3, 500))
	for minute := range int32(4) {
		ask(r, join(head, []int32{9, minute}, tail), false, 61)
		chat = join(chat.Tokens, tokens(uint64(20+minute), 50))
		ask(r, chat, false, len(chat.Tokens)-50)
	}
	found := r.Busters()
	require.Len(t, found, 1)
	require.Equal(t, []int{62, 63, 3, 3 * 400}, []int{found[0].Begin, found[0].End, found[0].Prompts, found[0].Lost})
}

// The part that changes may be of another length each time.
func TestBusterOfAnyLength(t *testing.T) {
	r := NewRecents()
	head, tail := tokens(1, 100), tokens(2, 300)
	for i := range 5 {
		ask(r, join(head, tokens(uint64(10+i), 1+3*i), tail), false, 100)
	}
	found := r.Busters()
	require.Len(t, found, 1)
	require.Equal(t, 100, found[0].Begin)
	require.Equal(t, 113, found[0].End)
	require.Equal(t, 4*300, found[0].Lost)
}

// At the very front, and more than one.
func TestSeveralBusters(t *testing.T) {
	r := NewRecents()
	a, b, c := tokens(1, 80), tokens(2, 300), tokens(3, 150)
	for i := range 4 {
		one := int32(i)
		ask(r, join([]int32{one}, a, []int32{one}, b, []int32{one}, c), false, 0)
	}
	var at, lost []int
	for _, p := range r.Busters() {
		at, lost = append(at, p.Begin), append(lost, p.Lost)
	}
	require.Equal(t, []int{81, 382, 0}, at, "those that cost most first")
	require.Equal(t, []int{900, 450, 240}, lost)
}

// A chat that goes on, other questions behind the same prompt, and other prompts are none.
func TestNoBuster(t *testing.T) {
	r := NewRecents()
	system, marks := tokens(1, 300), tokens(2, 6)
	chat := system
	for i := range 6 {
		chat = slices.Concat(chat, tokens(uint64(50+i), 30))
		ask(r, join(chat, marks), false, 0)
		ask(r, join(system, tokens(uint64(20+i), 25), marks), false, 300)
		ask(r, join(tokens(uint64(90+i), 300)), false, 0)
	}
	require.Empty(t, r.Busters())
}

func TestBustersAreBounded(t *testing.T) {
	r := NewRecents()
	for round := range 3 {
		for family := range uint64(50) {
			text := []int32(nil)
			for part := range uint64(10) {
				text = slices.Concat(text, tokens(1000*family+part, 40), []int32{int32(round)})
			}
			ask(r, Text{Tokens: text}, false, 0)
			require.LessOrEqual(t, len(r.busters.places), bustersMax)
			require.LessOrEqual(t, len(r.Busters()), telemetry.BustersMax)
		}
	}
}
