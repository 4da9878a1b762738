package pagefile

import "slices"

// MediaWithin returns the media of the n tokens from position start on, ordered, with offsets
// counted from start.
func MediaWithin(media []Media, start, n int) []Media {
	var in []Media
	for _, m := range media {
		if off := int64(m.Offset) - int64(start); off >= 0 && off < int64(n) {
			in = append(in, Media{Offset: uint32(off), Hash: m.Hash})
		}
	}
	slices.SortStableFunc(in, func(a, b Media) int { return int(int64(a.Offset) - int64(b.Offset)) })
	return in
}

// Shared returns the number of equal leading tokens.
func Shared(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// CommonPrefix returns the number of leading tokens of a and b that are equal and have equal
// media beginning at them. A [Reaching] image whose reach only one side knows is equal if the
// prefix has all that the image reached.
func CommonPrefix(a []int32, aMedia []Media, b []int32, bMedia []Media) int {
	n := Shared(a, b)
	var reaching []Media
	// The first media item that differs ends the prefix at the item's offset.
	for i := range max(len(aMedia), len(bMedia)) {
		if i < len(aMedia) && i < len(bMedia) {
			switch x, y := aMedia[i], bMedia[i]; {
			case x == y:
				continue
			case x.SameImage(y) && (x == x.unreached() || y == y.unreached()):
				if x.Reach() == 0 {
					x = y
				}
				reaching = append(reaching, x)
				continue
			}
		}
		if i < len(aMedia) {
			n = min(n, int(aMedia[i].Offset))
		}
		if i < len(bMedia) {
			n = min(n, int(bMedia[i].Offset))
		}
		break
	}
	for i := len(reaching) - 1; i >= 0; i-- {
		if m := reaching[i]; !m.reachedBy(a, aMedia, n) {
			n = min(n, int(m.Offset))
		}
	}
	return n
}

// Parts is the number of equal parts of a page that have a byte each in Leads.
const Parts = 32

// Leads has one byte of the hash of each part of a full page: pages whose leads differ in a
// part differ in that part. A tail has the leads of the parts that it fills. Leads rank pages that
// may begin like a prompt before any of them is read.
type Leads [Parts]byte

// leadEnd is the end of a part of a page.
func leadEnd(part, pageTokens int) int { return (part + 1) * pageTokens / Parts }

// PartsIn is the number of parts of a page that n tokens fill.
func PartsIn(n, pageTokens int) int {
	parts := 0
	for parts < Parts && leadEnd(parts, pageTokens) <= n {
		parts++
	}
	return parts
}

// LeadsOf returns the leads of a page that begins with tokens, and the number of parts that
// tokens fill. Offsets of media count from the page's first token.
func LeadsOf(tokens []int32, media []Media, pageTokens int) (leads Leads, parts int) {
	begin := 0
	parts = PartsIn(len(tokens), pageTokens)
	for part := range parts {
		end := leadEnd(part, pageTokens)
		leads[part] = ChainKey(Key{}, tokens[begin:end], MediaWithin(media, begin, end-begin))[0]
		begin = end
	}
	return leads, parts
}

// Most returns the largest number of tokens that a page with leads l can share with a page
// whose first parts have the leads of other.
func (l Leads) Most(other Leads, parts, pageTokens int) int {
	for part := range parts {
		if l[part] != other[part] {
			return max(0, leadEnd(part, pageTokens)-1)
		}
	}
	return pageTokens
}
