package pagefile

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
