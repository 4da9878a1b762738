package why

import (
	"encoding/binary"
	"hash/maphash"
	"sync"
)

const (
	// privateStep is the number of tokens between two beginnings of a private text of which a hash
	// is kept; privateFine is that of the first privateFineTo tokens, for short prompts.
	privateStep   = 32
	privateFine   = 8
	privateFineTo = 512

	// privateMax bounds the hashes: those of two million tokens, in about 3 MiB.
	privateMax = TokensMax / privateStep

	// hashBytes is the memory of a hash in the ring and in the map, roughly.
	hashBytes = 48
)

// private are hashes of the beginnings of private texts. The seed is random, so that hashes say
// nothing outside of this process.
type private struct {
	seed maphash.Seed

	mu     sync.Mutex
	hashes map[uint64]struct{}
	ring   []uint64 // in order of arrival
	next   int      // of ring, once it is full
}

func newPrivate() private {
	return private{seed: maphash.MakeSeed(), hashes: make(map[uint64]struct{})}
}

// hashed reports whether a hash of the first n tokens is kept.
func hashed(n int) bool {
	return n%privateStep == 0 || n <= privateFineTo && n%privateFine == 0
}

// prefixes calls fn with the hash of each hashed beginning of a text, until fn returns false.
func (p *private) prefixes(text Text, fn func(tokens int, hash uint64) bool) {
	var h maphash.Hash
	h.SetSeed(p.seed)
	media, word := text.Media, [4]byte{}
	for i, token := range text.Tokens {
		for len(media) > 0 && int(media[0].Offset) == i {
			h.Write(media[0].Hash[:])
			media = media[1:]
		}
		binary.LittleEndian.PutUint32(word[:], uint32(token))
		h.Write(word[:])
		if n := i + 1; hashed(n) && !fn(n, h.Sum64()) {
			return
		}
	}
}

func (p *private) add(text Text) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prefixes(text, func(_ int, hash uint64) bool {
		if _, known := p.hashes[hash]; known {
			return true
		}
		if len(p.ring) < privateMax {
			p.ring = append(p.ring, hash)
		} else {
			delete(p.hashes, p.ring[p.next])
			p.ring[p.next] = hash
			p.next = (p.next + 1) % privateMax
		}
		p.hashes[hash] = struct{}{}
		return true
	})
}

func (p *private) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ring)
}

// covers returns how many of a text's tokens a private text had at least, 0 unless it had them up to
// and beyond a position.
func (p *private) covers(text Text, position int) (tokens int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prefixes(text, func(n int, hash uint64) bool {
		_, known := p.hashes[hash]
		if n > position {
			if known {
				tokens = n
			}
			return known
		}
		return true
	})
	return tokens
}
