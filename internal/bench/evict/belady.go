package evict

import (
	"cmp"
	"container/heap"
	"math"

	"github.com/kvtier/kvtier/internal/bench/trace"
)

// tree has the pages of a trace. The same block behind other pages is another page, as in a store.
type tree struct {
	nodes   []node
	prompts [][]int // nodes of each prompt, from its first block on
	blocks  int     // of all prompts
}

type node struct {
	parent int   // -1 for a first block
	uses   []int // prompts, in order
}

func newTree(requests []trace.Request) *tree {
	type place struct {
		parent int
		block  int32
	}
	t, known := &tree{}, make(map[place]int)
	for i, r := range requests {
		parent, prompt := -1, make([]int, 0, len(r.Blocks))
		for _, block := range r.Blocks {
			n, ok := known[place{parent, block}]
			if !ok {
				n = len(t.nodes)
				known[place{parent, block}] = n
				t.nodes = append(t.nodes, node{parent: parent})
			}
			t.nodes[n].uses = append(t.nodes[n].uses, i)
			prompt = append(prompt, n)
			parent = n
		}
		t.prompts = append(t.prompts, prompt)
		t.blocks += len(prompt)
	}
	return t
}

// share is a number of pages as a share of all prompts' blocks.
func (t *tree) share(given int) float64 { return float64(given) / float64(t.blocks) }

// future returns how many pages a store with room for some gives back if it knows what comes. All pages of a
// prompt are stored first. Then those leave that are used furthest in the future, of the pages that no stored
// page continues.
func (t *tree) future(room int) (given int) {
	n := len(t.nodes)
	s := &seer{tree: t, stored: make([]bool, n), children: make([]int, n), used: make([]int, n)}
	for _, prompt := range t.prompts {
		given += s.serve(prompt)
		for s.pages > room {
			s.evict()
		}
	}
	return given
}

// seer is a store that knows what comes.
type seer struct {
	*tree
	stored   []bool
	pages    int   // stored ones
	children []int // stored pages that continue a page
	used     []int // how many of a page's uses are over
	leaves   leaves
}

// serve stores a prompt's pages, and returns how many were found.
func (s *seer) serve(prompt []int) (found int) {
	for _, n := range prompt {
		s.used[n]++
		if s.stored[n] {
			found++
			continue
		}
		s.stored[n] = true
		s.pages++
		if parent := s.nodes[n].parent; parent >= 0 {
			s.children[parent]++
		}
	}
	s.offer(prompt[len(prompt)-1])
	return found
}

// never is later than any prompt.
const never = math.MaxInt

// next is the next prompt that uses a page.
func (s *seer) next(n int) int {
	if uses := s.nodes[n].uses; s.used[n] < len(uses) {
		return uses[s.used[n]]
	}
	return never
}

// offer notes that a page may leave, if no stored page continues it.
func (s *seer) offer(n int) {
	if s.children[n] == 0 {
		heap.Push(&s.leaves, leaf{n, s.next(n)})
	}
}

func (s *seer) evict() {
	l := heap.Pop(&s.leaves).(leaf)
	if !s.stored[l.node] || s.children[l.node] > 0 || l.next != s.next(l.node) {
		return // the page left, or was continued or used since it was noted
	}
	s.stored[l.node] = false
	s.pages--
	if parent := s.nodes[l.node].parent; parent >= 0 {
		s.children[parent]--
		s.offer(parent)
	}
}

// leaf is a page that may leave, and the next prompt that uses it.
type leaf struct{ node, next int }

// leaves has the page first that leaves first.
type leaves []leaf

func (l leaves) Len() int { return len(l) }
func (l leaves) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(l[i].next, l[j].next), cmp.Compare(l[i].node, l[j].node)) > 0
}
func (l leaves) Swap(i, j int) { l[i], l[j] = l[j], l[i] }
func (l *leaves) Push(x any)   { *l = append(*l, x.(leaf)) }
func (l *leaves) Pop() any {
	last := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return last
}
