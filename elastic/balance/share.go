package balance

import (
	"cmp"
	"slices"

	"github.com/kvtier/kvtier/elastic/segment"
)

const (
	// floorPart is the part of a process's equal share that it has in any case: its next request
	// begins without waiting for a look.
	floorPart = 4

	// growthPart of the memory that work needs is added for its answers.
	growthPart = 8

	// quietPart of the budget is the smallest change of a limit, unless work waits for less: limits
	// that move all the time empty conversations for nothing.
	quietPart = 32
)

// need is the memory that a process's work takes.
func need(s segment.Segment) int64 { return running(s) + s.Lacking }

// running is the memory that running work takes in any case.
func running(s segment.Segment) int64 { return max(0, s.Used-s.Spare) + s.Promised }

// held is the most memory that a process may have before it obeys another limit.
func held(s segment.Segment) int64 { return max(s.Limit, s.InForce, s.Used+s.Kept+s.Promised) }

// Share divides a budget. The shares are in the order of the segments and add up to the budget at
// most. Where there is too little for all work that waits, a turn decides who is first: half of the
// memory for each of two prompts would serve neither.
func Share(budget int64, segments []segment.Segment, turn int) []int64 {
	n := int64(len(segments))
	if n == 0 {
		return nil
	}
	wants := make([]int64, n)
	sum := int64(0)
	for i, s := range segments {
		work := need(s)
		wants[i] = min(budget, max(budget/n/floorPart, work+work/growthPart))
		sum += wants[i]
	}
	if sum > budget {
		return inTurn(budget, segments, wants, turn)
	}
	shares := slices.Clone(wants)
	spares := make([]int64, n)
	for i, s := range segments {
		spares[i] = max(0, s.Used-shares[i]) // conversations beyond the work and the floor
	}
	for i, kept := range level(budget-sum, spares) {
		shares[i] += kept
		sum += kept
	}
	for i := range shares {
		shares[i] += (budget - sum) / n
	}
	return shares
}

// inTurn gives everyone the memory of running work, or the floor, and then the rest to one after
// another.
func inTurn(budget int64, segments []segment.Segment, wants []int64, turn int) []int64 {
	n := len(segments)
	floor := budget / int64(n) / floorPart
	runs := make([]int64, n)
	for i, s := range segments {
		runs[i] = min(wants[i], max(floor, running(s)))
	}
	shares := level(budget, runs)
	for _, share := range shares {
		budget -= share
	}
	for _, at := range byTurn(segments, floor, turn) {
		more := min(budget, wants[at]-shares[at])
		shares[at] += more
		budget -= more
	}
	return shares
}

// byTurn is the order in which processes get memory. Those come first whose running work takes no more than
// the floor: nothing of theirs can end and make room, while work elsewhere may end after a turn has.
func byTurn(segments []segment.Segment, floor int64, turn int) []int {
	n := len(segments)
	var first, last []int
	for i := range n {
		at := (turn + i) % n
		if running(segments[at]) <= floor {
			first = append(first, at)
		} else {
			last = append(last, at)
		}
	}
	return append(first, last...)
}

// level gives everyone as much as is wanted, or where that is too much the same amount.
func level(budget int64, wants []int64) []int64 {
	order := make([]int, len(wants))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(wants[a], wants[b]) })
	shares := make([]int64, len(wants))
	for done, i := range order {
		shares[i] = min(wants[i], budget/int64(len(order)-done))
		budget -= shares[i]
	}
	return shares
}

// A Change is another limit of a segment.
type Change struct {
	Name     string
	From, To int64 // bytes
}

// Changes are the limits to set now, in this order, so that shares come about. A limit rises only as
// far as the memory of others has been given back; the rest follows at later looks.
func Changes(budget int64, segments []segment.Segment, turn int) []Change {
	shares := Share(budget, segments, turn)
	short := slices.ContainsFunc(segments, func(s segment.Segment) bool { return need(s) > s.Limit })
	limits := int64(0)
	for _, s := range segments {
		limits += min(s.Limit, budget+1) // more says no more, and must not overflow
	}
	total := int64(0)
	var changes []Change
	for i, s := range segments {
		if shares[i] < s.Limit && (short || limits > budget || s.Limit-shares[i] > budget/quietPart) {
			changes = append(changes, Change{s.Name, s.Limit, shares[i]})
		}
		total += held(s)
	}
	order := make([]int, len(segments))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(segments[b].Lacking, segments[a].Lacking) })
	for _, i := range order {
		s := segments[i]
		has := held(s)
		to := min(shares[i], has+max(0, budget-total))
		if shares[i] > s.Limit && to > s.Limit && (need(s) > s.Limit || to-s.Limit > budget/quietPart) {
			total += max(0, to-has)
			changes = append(changes, Change{s.Name, s.Limit, to})
		}
	}
	return changes
}
