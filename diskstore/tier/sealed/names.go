package sealed

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// feistelRounds makes a permutation that cannot be told from a random one, forwards and backwards
// (Luby and Rackoff 1988).
const feistelRounds = 4

// feistel replaces block by its image under a permutation of all blocks of this length that key and tweak
// choose, or with open by its inverse image.
func feistel(key, tweak, block []byte, open bool) {
	mac := hmac.New(sha256.New, key)
	halves := [2][]byte{block[:len(block)/2], block[len(block)/2:]}
	for i := range feistelRounds {
		if open {
			i = feistelRounds - 1 - i
		}
		from, to := halves[i%2], halves[1-i%2]
		mac.Reset()
		mac.Write([]byte{byte(i)})
		mac.Write(tweak)
		mac.Write(from)
		subtle.XORBytes(to, to, mac.Sum(nil))
	}
}

func (k *key) sealFingerprint(f pagefile.Key) pagefile.Key {
	feistel(k.fingerprints, nil, f[:], false)
	return f
}

func (k *key) openFingerprint(f pagefile.Key) pagefile.Key {
	feistel(k.fingerprints, nil, f[:], true)
	return f
}

// permutation is a keyed permutation of keys. Keys that begin with the same byte do so afterwards: shards stay
// shards, and lists by the first byte of a prefix stay lists.
type permutation struct {
	sealed, opened [256]byte // of the first byte
	rest           []byte    // the key of the other bytes
}

func newPermutation(secret []byte, fingerprint pagefile.Key, kind string) *permutation {
	p := &permutation{rest: derive(secret, fingerprint[:], "kvtier "+kind, keyBytes)}
	for i := range p.sealed {
		p.sealed[i] = byte(i)
	}
	random := derive(secret, fingerprint[:], "kvtier first byte of "+kind, 8*255)
	for i := 255; i > 0; i-- { // Fisher and Yates
		j := binary.LittleEndian.Uint64(random[8*(i-1):]) % uint64(i+1)
		p.sealed[i], p.sealed[j] = p.sealed[j], p.sealed[i]
	}
	for i, b := range p.sealed {
		p.opened[b] = byte(i)
	}
	return p
}

func (p *permutation) seal(k pagefile.Key) pagefile.Key {
	k[0] = p.sealed[k[0]]
	feistel(p.rest, k[:1], k[1:], false)
	return k
}

func (p *permutation) open(k pagefile.Key) pagefile.Key {
	feistel(p.rest, k[:1], k[1:], true)
	k[0] = p.opened[k[0]]
	return k
}

// names seals and opens the names of one fingerprint with one key.
type names struct {
	plain, fingerprint pagefile.Key // the fingerprint, and its sealed form
	files              [2]*permutation
	prefixes           *permutation
	targets, leads     []byte // keys of what a branch names, and of its leads
}

// of returns the names of a fingerprint.
func (k *key) of(fingerprint pagefile.Key) *names {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := k.known[fingerprint]; n != nil {
		return n
	}
	n := &names{
		plain: fingerprint, fingerprint: k.sealFingerprint(fingerprint),
		prefixes: newPermutation(k.names, fingerprint, "prefixes"),
		targets:  derive(k.names, fingerprint[:], "kvtier targets", keyBytes),
		leads:    derive(k.names, fingerprint[:], "kvtier leads", keyBytes),
	}
	n.files[pagefile.ClassPage] = newPermutation(k.names, fingerprint, "pages")
	n.files[pagefile.ClassTail] = newPermutation(k.names, fingerprint, "tails")
	if len(k.known) >= maxNames {
		clear(k.known)
	}
	k.known[fingerprint] = n
	return n
}

// name seals the name of a file. A manifest's key stays zero.
func (k *key) name(n pagefile.Name) pagefile.Name {
	if n.Class == pagefile.ClassManifest {
		n.Fingerprint = k.sealFingerprint(n.Fingerprint)
		return n
	}
	in := k.of(n.Fingerprint)
	return pagefile.Name{Fingerprint: in.fingerprint, Class: n.Class, Key: in.files[n.Class].seal(n.Key)}
}

// shard seals the name of a shard.
func (n *names) shard(s tier.Shard) tier.Shard {
	return tier.Shard{Fingerprint: n.fingerprint, Class: s.Class, First: n.files[s.Class].sealed[s.First]}
}

// openShard is the inverse of shard.
func (n *names) openShard(s tier.Shard) tier.Shard {
	return tier.Shard{Fingerprint: n.plain, Class: s.Class, First: n.files[s.Class].opened[s.First]}
}

// branch seals a branch. The sealed key is not that of the sealed page, and differs at each prefix.
func (n *names) branch(b tier.Branch) tier.Branch {
	out := tier.Branch{Fingerprint: n.fingerprint, Prefix: n.prefixes.seal(b.Prefix), Longer: b.Longer}
	if !b.Longer {
		out.Class, out.Tokens, out.Key = b.Class, b.Tokens, b.Key
		feistel(n.targets, target(b), out.Key[:], false)
		out.Leads = n.maskLeads(b)
	}
	return out
}

// openBranch is the inverse of branch.
func (n *names) openBranch(b tier.Branch) tier.Branch {
	b.Fingerprint, b.Prefix = n.plain, n.prefixes.open(b.Prefix)
	if !b.Longer {
		feistel(n.targets, target(b), b.Key[:], true)
		b.Leads = n.maskLeads(b)
	}
	return b
}

// target is the plain part of a branch that its sealed key depends on.
func target(b tier.Branch) []byte {
	return binary.LittleEndian.AppendUint64(append(b.Prefix[:], byte(b.Class)), uint64(b.Tokens))
}

// maskLeads adds a mask to the leads of a branch that is otherwise plain, or takes it away. The leads of a
// page are always the same, so that no mask is used for two values.
func (n *names) maskLeads(b tier.Branch) (leads pagefile.Leads) {
	mac := hmac.New(sha256.New, n.leads)
	mac.Write(target(b))
	mac.Write(b.Key[:])
	subtle.XORBytes(leads[:], b.Leads[:], mac.Sum(nil))
	return leads
}
