package sizing

// Origin is where a figure comes from.
type Origin string

// Origins.
const (
	Measured Origin = "measured" // now, or by a server that ran here
	Read     Origin = "read"     // from the model's file
	Given    Origin = "given"    // by the user
	Assumed  Origin = "assumed"
	Computed Origin = "computed" // from other figures
)

// Figure is a number, and where it comes from.
type Figure struct {
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Origin Origin  `json:"origin"`
	From   string  `json:"from,omitempty"` // names the file, the option or the formula
}

// Units of figures.
const (
	Bytes         = "bytes"
	Tokens        = "tokens"
	Conversations = "conversations"
	Seconds       = "seconds"
	BytesPerS     = "bytes/s"
	TokensPerDay  = "tokens/day"
	BytesPerDay   = "bytes/day"
	Years         = "years"
	Ratio         = "ratio"
	Count         = "count"
)

// weakest is the origin of a figure that follows from others: one that follows from an
// assumption is an assumption.
func weakest(figures ...Figure) Origin {
	for _, f := range figures {
		if f.Origin == Assumed {
			return Assumed
		}
	}
	return Computed
}
