package show

import (
	"cmp"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/table"
)

// Figures prints a part of a report, a struct, as tables. Its values stand one below the other,
// under the names that they have in JSON. The elements of a list, and neighbouring fields of one
// type, make a table of their own. The tag unit of a field, or of one around it, says how numbers
// are written: "s", "ns", "B", "B/s", "/s" or "ratio".
func Figures(w io.Writer, name string, part any) {
	own := group{name: name}
	var groups []*group
	each(part, "", func(name, unit string, v reflect.Value) {
		switch {
		case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
			g := &group{}
			for i := range v.Len() {
				values := leaves(v.Index(i), "", unit)
				g.name = values[0].name
				g.columns = append(g.columns, column{name: values[0].text, values: values[1:]})
			}
			groups = append(groups, g)
		case isStruct(v):
			if n := len(groups); n == 0 || groups[n-1].of != v.Type() {
				groups = append(groups, &group{of: v.Type()})
			}
			g := groups[len(groups)-1]
			g.columns = append(g.columns, column{name: name, values: leaves(v, "", unit)})
		default:
			own.columns = append(own.columns, column{name: name, values: []leaf{{"", text(v, unit)}}})
		}
	})
	for _, g := range append([]*group{&own}, groups...) {
		g.print(w)
	}
}

// group is a table, of columns that have values with the same names.
type group struct {
	name    string       // of the columns' names
	of      reflect.Type // of the fields that it is made of; nil: elements of a list
	columns []column
}

type column struct {
	name   string
	values []leaf
}

type leaf struct{ name, text string }

// print turns a table that is wider than high.
func (g *group) print(w io.Writer) {
	if len(g.columns) == 0 {
		return
	}
	values := g.columns[0].values
	rows := make([][]string, 1+len(values))
	rows[0] = []string{g.name}
	for i, l := range values {
		rows[1+i] = []string{l.name}
	}
	for _, c := range g.columns {
		rows[0] = append(rows[0], c.name)
		for i, l := range c.values {
			rows[1+i] = append(rows[1+i], l.text)
		}
	}
	if len(g.columns) >= len(values) {
		turned := make([][]string, len(rows[0]))
		for _, row := range rows {
			for i, text := range row {
				turned[i] = append(turned[i], text)
			}
		}
		rows = turned
	}
	fmt.Fprintln(w)
	table.Print(w, rows[0], rows[1:])
}

// each calls visit with the fields of a struct that are in JSON, without nil structs.
func each(part any, unit string, visit func(name, unit string, v reflect.Value)) {
	v := reflect.Indirect(reflect.ValueOf(part))
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		if value.Kind() == reflect.Pointer {
			if value.IsNil() && field.Type != reflect.TypeFor[*measure.Series]() {
				continue
			}
			value = reflect.Indirect(value)
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		visit(strings.ReplaceAll(name, "_", " "), cmp.Or(field.Tag.Get("unit"), unit), value)
	}
}

// leaves are the values in a struct, those of inner structs behind their names.
func leaves(v reflect.Value, prefix, unit string) (all []leaf) {
	each(v.Interface(), unit, func(name, unit string, v reflect.Value) {
		if isStruct(v) {
			all = append(all, leaves(v, prefix+name+" ", unit)...)
		} else {
			all = append(all, leaf{prefix + name, text(v, unit)})
		}
	})
	return all
}

func isStruct(v reflect.Value) bool {
	return v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[measure.Series]()
}

// text is a value for people; an invalid one was not measured.
func text(v reflect.Value, unit string) string {
	if !v.IsValid() {
		return "not measured"
	}
	switch x := v.Interface().(type) {
	case measure.Series:
		if len(x.Values) < 2 {
			return Number(x.Median, unit)
		}
		return fmt.Sprintf("%s (%s–%s)", Number(x.Median, unit), Number(x.Min, unit), Number(x.Max, unit))
	case int:
		return Count(x)
	case int64:
		return Number(float64(x), cmp.Or(unit, "B"))
	case float64:
		return Number(x, unit)
	}
	return fmt.Sprint(v)
}

// Number is a number of a unit; see [Figures].
func Number(v float64, unit string) string {
	switch unit {
	case "s":
		return Seconds(time.Duration(v * float64(time.Second)))
	case "B":
		if v < 1e6 {
			return Count(int(v)) + " B"
		}
		return fmt.Sprintf("%s MB", Count(int(v/1e6+0.5)))
	case "B/s":
		return Rate(v)
	case "/s":
		return fmt.Sprintf("%.1f/s", v)
	case "ns":
		return fmt.Sprintf("%.0f ns", v)
	}
	return fmt.Sprintf("%.4g", v)
}

// Count is a whole number with separated thousands: 8,003.
func Count(n int) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Seconds is a duration with three significant digits, in seconds, milliseconds or microseconds.
func Seconds(d time.Duration) string {
	if 0 < d && d < 999500*time.Nanosecond {
		return significant(d.Seconds()*1e6) + " µs"
	}
	if d < 999500*time.Microsecond {
		return significant(d.Seconds()*1e3) + " ms"
	}
	return significant(d.Seconds()) + " s"
}

// Times is a ratio: 45×.
func Times(ratio float64) string {
	if ratio >= 999.5 {
		return Count(int(ratio+0.5)) + "×"
	}
	return significant(ratio) + "×"
}

// Percent is a ratio near 1: 99.1 %.
func Percent(ratio float64) string { return fmt.Sprintf("%.1f %%", 100*ratio) }

// Rate is bytes per second: 1,520 MB/s.
func Rate(bytesPerSecond float64) string {
	return Count(int(bytesPerSecond/1e6+0.5)) + " MB/s"
}

// significant rounds a positive number to three digits, without an exponent.
func significant(v float64) string {
	switch {
	case v >= 99.95:
		return fmt.Sprintf("%.0f", v)
	case v >= 9.995:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
