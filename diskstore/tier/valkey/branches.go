package valkey

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// An element of a set of branches is the prefix and, unless the branch is marked Longer, the class, the
// tokens, the key and the leads. Elements of a set with one score are in the order of their bytes.
const (
	prefixBytes = len(pagefile.Key{})
	branchBytes = prefixBytes + 1 + 4 + prefixBytes + len(pagefile.Leads{})
)

func branchElement(b tier.Branch) string {
	text := slices.Clone(b.Prefix[:])
	if !b.Longer {
		text = append(text, byte(b.Class))
		text = binary.BigEndian.AppendUint32(text, uint32(b.Tokens))
		text = append(text, b.Key[:]...)
		text = append(text, b.Leads[:]...)
	}
	return string(text)
}

// parseBranch returns false for an element that no tier has made.
func parseBranch(fingerprint pagefile.Key, text string) (b tier.Branch, ok bool) {
	if len(text) != prefixBytes && len(text) != branchBytes {
		return b, false
	}
	b = tier.Branch{Fingerprint: fingerprint, Prefix: pagefile.Key([]byte(text[:prefixBytes])), Longer: len(text) == prefixBytes}
	if b.Longer {
		return b, true
	}
	rest := []byte(text[prefixBytes:])
	b.Class, b.Tokens = pagefile.Class(rest[0]), int(binary.BigEndian.Uint32(rest[1:]))
	b.Key, b.Leads = pagefile.Key(rest[5:5+prefixBytes]), pagefile.Leads(rest[5+prefixBytes:])
	return b, branchElement(b) == text
}

func (t *Tier) branchesKey(fingerprint pagefile.Key, first byte) string {
	return t.prefix + "branches:" + fingerprint.String() + ":" + pagefile.Key{first}.String()[:2]
}

func (t *Tier) AddBranch(ctx context.Context, b tier.Branch, _ bool) error {
	_, err := t.do(ctx, "add a branch", t.client.B().Zadd().Key(t.branchesKey(b.Fingerprint, b.Prefix[0])).
		ScoreMember().ScoreMember(0, branchElement(b)).Build().ToRetryable())
	return err
}

func (t *Tier) RemoveBranch(ctx context.Context, b tier.Branch) error {
	_, err := t.do(ctx, "remove a branch", t.client.B().Zrem().Key(t.branchesKey(b.Fingerprint, b.Prefix[0])).
		Member(branchElement(b)).Build().ToRetryable())
	return err
}

// errRepeats reports a list that would not end.
var errRepeats = errors.New("the list repeats itself")

// Branches asks for listAtOnce branches at a time.
func (t *Tier) Branches(ctx context.Context, fingerprint pagefile.Key, prefix []byte) ([]tier.Branch, error) {
	var branches []tier.Branch
	set, from, to := t.branchesKey(fingerprint, prefix[0]), "["+string(prefix), after(prefix)
	for {
		answers, err := t.do(ctx, "list branches", t.client.B().Zrange().Key(set).Min(from).Max(to).Bylex().Limit(0, listAtOnce).Build())
		if err != nil {
			return branches, err
		}
		elements, err := answers[0].AsStrSlice()
		if err != nil {
			return branches, t.failed(ctx, "list branches", err)
		}
		for _, text := range elements {
			if b, ok := parseBranch(fingerprint, text); ok {
				branches = append(branches, b)
			}
		}
		if len(elements) < listAtOnce {
			return branches, nil
		}
		next := "(" + elements[len(elements)-1]
		if next == from {
			return branches, t.failed(ctx, "list branches", errRepeats)
		}
		from = next
	}
}

// after is the end of the elements that begin with some bytes, in the words of ZRANGE.
func after(prefix []byte) string {
	for n := len(prefix) - 1; n >= 0; n-- {
		if prefix[n] < 0xff {
			return "(" + string(prefix[:n]) + string([]byte{prefix[n] + 1})
		}
	}
	return "+"
}
