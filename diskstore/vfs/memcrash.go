package vfs

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// Clone returns a copy of the whole filesystem, durable or not, without open files and locks.
func (m *Mem) Clone() *Mem { return m.copy(&memCopier{}) }

// Crash returns the filesystem after the power failed at this moment: all synced pieces, and
// each piece of the rest with probability keep, from 0 to 1. The same seed gives the same
// result. Directories named in spare are on other machines, which did not fail: they lose
// nothing. The result is durable as a whole, without open files and locks.
func (m *Mem) Crash(keep float64, seed uint64, spare ...string) *Mem {
	c := &memCopier{crash: true, keep: keep, rng: rand.New(rand.NewPCG(seed, 0)), spare: make(map[*memNode]bool)}
	for _, path := range spare {
		m.mu.Lock()
		if n, err := m.find(memPath(path)); err == nil {
			c.spare[n] = true
		}
		m.mu.Unlock()
	}
	return m.copy(c)
}

func (m *Mem) copy(c *memCopier) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.done = make(map[*memNode]*memNode)
	c.crash = c.crash && !m.atOnce
	return &Mem{total: m.total, atOnce: m.atOnce, root: c.node(m.root, false)}
}

// memCopier copies nodes, each once.
type memCopier struct {
	done map[*memNode]*memNode

	crash bool
	keep  float64
	rng   *rand.Rand
	spare map[*memNode]bool
}

// survives decides whether a piece that is not durable survives.
func (c *memCopier) survives() bool { return c.rng.Float64() < c.keep }

// node copies n, once. spared: n is in a directory that loses nothing.
func (c *memCopier) node(n *memNode, spared bool) *memNode {
	if n == nil {
		return nil
	}
	if to := c.done[n]; to != nil {
		return to
	}
	to := &memNode{mode: n.mode, times: n.times, durable: n.durable}
	c.done[n] = to
	spared = spared || c.spare[n]
	switch {
	case !c.crash:
		c.exact(n, to)
	case spared:
		to.data, to.names = n.data[:len(n.data):len(n.data)], c.named(n.names, true)
		to.settle()
	default:
		if n.times != n.durable && !c.survives() {
			to.times = n.durable
		}
		to.data, to.names = c.content(n), c.named(c.entries(n), false)
		to.settle()
	}
	return to
}

// exact copies all fields of n to `to`.
func (c *memCopier) exact(n, to *memNode) {
	to.data, to.synced = n.data[:len(n.data):len(n.data)], n.synced
	to.onDisk = c.nodes(n.onDisk)
	to.changes = slices.Clone(n.changes)
	for i := range to.changes {
		to.changes[i].node = c.node(to.changes[i].node, false)
	}
	to.names = c.named(n.names, false)
}

// nodes copies the nodes of a directory's durable names.
func (c *memCopier) nodes(names map[string]*memNode) map[string]*memNode {
	if names == nil {
		return nil
	}
	to := make(map[string]*memNode, len(names))
	for name, n := range names {
		to[name] = c.node(n, false)
	}
	return to
}

// named copies a directory's names and their nodes.
func (c *memCopier) named(names map[string]*memNode, spared bool) map[string]*memNode {
	if names == nil {
		return nil
	}
	to := make(map[string]*memNode, len(names))
	for _, name := range sortedNames(names) {
		n := c.node(names[name], spared)
		if n.mode.IsDir() && n.links > 0 {
			continue // a directory that was being moved keeps one of its two names
		}
		n.links++
		to[name] = n
	}
	return to
}

// entries decides which changes of a directory reached the device.
func (c *memCopier) entries(n *memNode) map[string]*memNode {
	if !n.mode.IsDir() {
		return nil
	}
	names := maps.Clone(n.onDisk)
	if names == nil {
		names = make(map[string]*memNode)
	}
	for _, change := range n.changes {
		if c.survives() {
			change.apply(names)
		}
	}
	return names
}

// content decides how much of a file reached the device. The length may have grown without
// the data; the gap then has zeros or the former content of the blocks.
func (c *memCopier) content(n *memNode) []byte {
	if n.synced == len(n.data) {
		return n.data[:n.synced:n.synced]
	}
	data := slices.Clone(n.data)
	end := n.synced
	for off := n.synced; off < len(data); {
		next := min((off/memBlock+1)*memBlock, len(data))
		if c.survives() {
			end = next
		} else {
			c.stale(data[off:next])
		}
		off = next
	}
	if c.survives() {
		end = len(data)
	}
	return data[:end]
}

// stale fills a block that was allocated and never written with zeros or former content.
func (c *memCopier) stale(block []byte) {
	clear(block)
	if c.rng.IntN(2) == 0 {
		return
	}
	for i := range block {
		block[i] = byte(c.rng.Uint32())
	}
}

// settle marks a node as durable.
func (n *memNode) settle() {
	n.durable = n.times
	n.synced = len(n.data)
	n.onDisk, n.changes = maps.Clone(n.names), nil
}
