package encoding

import (
	"fmt"
	"strings"
)

// ParseCold reads the lossy encodings of K and of V, such as "q8_0,q4_0", or one for both, such as
// "int4".
func ParseCold(text string) (k, v ID, err error) {
	first, second, both := strings.Cut(text, ",")
	if !both {
		second = first
	}
	for _, part := range []struct {
		name string
		id   *ID
	}{{first, &k}, {second, &v}} {
		if *part.id = lossyNamed(strings.TrimSpace(part.name)); *part.id == Raw {
			return Raw, Raw, fmt.Errorf("read cold type %q: %q is none of q8_0, q4_0, int4; give one of them, or one for K and one for V as in q8_0,q4_0",
				text, part.name)
		}
	}
	return k, v, nil
}

// lossyNamed returns the lossy encoding with a name, or Raw.
func lossyNamed(name string) ID {
	for id, has := range names {
		if id.Lossy() && has == name {
			return id
		}
	}
	return Raw
}
