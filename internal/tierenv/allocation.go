package tierenv

import "github.com/ollama/ollama/format"

// Allocation lists the tiers for a log line: the directory and the budget of each, and the number of
// tokens that fit uncompressed, where a token's number of bytes is known.
func (c Config) Allocation(tokenBytes int64) []any {
	var attrs []any
	tier := func(name string, bytes int64) {
		if bytes == 0 {
			attrs = append(attrs, name+"_budget", "all but 5% of the disk")
			return
		}
		attrs = append(attrs, name+"_budget", format.HumanBytes(bytes))
		if tokenBytes > 0 {
			attrs = append(attrs, name+"_tokens", bytes/tokenBytes)
		}
	}
	attrs = append(attrs, "local", c.Local)
	tier("local", c.LocalBytes)
	if c.RAMBytes > 0 {
		tier("ram", c.RAMBytes)
	}
	if c.Remote != "" {
		attrs = append(attrs, "remote", c.Remote)
		tier("remote", c.RemoteBytes)
	}
	return attrs
}
