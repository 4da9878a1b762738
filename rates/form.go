package rates

// Form tells how much smaller a page's file is than the rows in it. Smaller rows are decoded after they
// are read, which takes the longer for each byte of the file, the smaller they are: a tier has a rate
// of its own for each form. The size of a file is known before it is opened, its encoding is not.
type Form uint8

const (
	Whole   Form = iota // the file is as large as the rows
	Packed              // smaller: encodings without loss of f16 and bf16
	Half                // about half as large: q8_0 for f16
	Quarter             // about a quarter: 4 bits for f16
	forms
)

// Least ratios of the rows' size to the file's, in tenths.
const (
	halfTenths    = 17
	quarterTenths = 28
)

// FormOf returns the form of a file of some bytes that holds rows of some bytes.
func FormOf(file, rows int64) Form {
	switch {
	case file >= rows:
		return Whole
	case 10*rows < halfTenths*file:
		return Packed
	case 10*rows < quarterTenths*file:
		return Half
	}
	return Quarter
}

// String is the form's name in the file of rates.
func (f Form) String() string { return formNames[f] }

var formNames = []string{"whole", "packed", "half", "quarter"}
