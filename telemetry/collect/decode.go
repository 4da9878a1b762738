package collect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/kvtier/kvtier/telemetry"
)

// Bounds besides those of package telemetry. Root reads files of other users.
const (
	objectsMax       = 4096  // in a report: a million empty ones would take a hundred times their length
	valuesMax        = 16384 // in a report, besides those of its objects
	seriesBytesMax   = 160
	fileObjectsMax   = telemetry.ModelsMax * (telemetry.SeriesMax + 2)
	listMax          = telemetry.SeriesMax // values of a list or a map
	tiersMax         = 8
	memoryMax        = 64
	totalMax         = 1e18  // of one process; doubles count up to 2^53 exactly
	sumMax           = 1e300 // JSON has no infinity
	yearMin, yearMax = 1969, 9000
)

// errContent reports a file whose content cannot be used.
var errContent = errors.New("its content cannot be used")

// decode decodes a file whose objects are bounded, and checks all that is in it.
func decode(data []byte, objects int, to any) error {
	if bytes.Count(data, []byte("{")) > objects {
		return fmt.Errorf("%w: it has more than %d objects", errContent, objects)
	}
	if values := 2*objects + valuesMax; bytes.Count(data, []byte(",")) > values { // each may be an object in memory
		return fmt.Errorf("%w: it has more than %d values", errContent, values)
	}
	err := json.Unmarshal(data, to)
	if err == nil {
		err = check(reflect.ValueOf(to).Elem())
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errContent, err)
	}
	return nil
}

// decodeReport decodes a file of a process.
func decodeReport(data []byte) (*report, error) {
	r := new(report)
	if err := decode(data, objectsMax, r); err != nil {
		return nil, err
	}
	engine := r.Process.Engine
	switch {
	case r.Version != telemetry.Version:
		return nil, fmt.Errorf("%w: it has version %d, and this program reads version %d", errContent, r.Version, telemetry.Version)
	case r.Process.PID <= 0, engine != telemetry.EngineOllama && engine != telemetry.EngineLlama:
		return nil, fmt.Errorf("%w: it is of no process", errContent)
	}
	for series, total := range r.Totals {
		if !(total >= 0 && total <= totalMax) {
			return nil, fmt.Errorf("%w: %s is %g", errContent, series, total)
		}
	}
	for i := range r.Prompts {
		if p := &r.Prompts[i]; p.Private {
			p.Miss = withoutWords(p.Miss)
		}
	}
	if u := r.Unstored; u != nil && !slices.Contains(telemetry.Obstacles, u.Cause) {
		u.Cause = telemetry.ObstacleOther // of a newer program
	}
	return r, nil
}

var timeType, durationType = reflect.TypeFor[time.Time](), reflect.TypeFor[time.Duration]()

// check refuses text with control characters, lists that are too long, numbers of things below zero,
// and times that JSON cannot write.
func check(v reflect.Value) error {
	switch v.Kind() {
	case reflect.String:
		return checkText(v.String(), telemetry.NameBytesMax)
	case reflect.Int, reflect.Int64:
		if v.Type() != durationType && v.Int() < 0 {
			return fmt.Errorf("a number is %d", v.Int())
		}
	case reflect.Float64:
		if math.Abs(v.Float()) > sumMax {
			return fmt.Errorf("a number is %g", v.Float())
		}
	case reflect.Pointer:
		if !v.IsNil() {
			return check(v.Elem())
		}
	case reflect.Slice, reflect.Map:
		if v.Len() > listMax {
			return fmt.Errorf("a list has more than %d values", listMax)
		}
		return checkAll(v)
	case reflect.Struct:
		if v.Type() == timeType {
			return checkTime(v.Interface().(time.Time))
		}
		for i := range v.NumField() {
			if err := check(v.Field(i)); err != nil {
				return fmt.Errorf("%s: %w", v.Type().Field(i).Name, err)
			}
		}
	}
	return nil
}

func checkAll(v reflect.Value) error {
	for key, value := range v.Seq2() {
		if v.Kind() == reflect.Map {
			if err := checkText(key.String(), seriesBytesMax); err != nil {
				return err
			}
		}
		if err := check(value); err != nil {
			return err
		}
	}
	return nil
}

func checkText(s string, bytesMax int) error {
	if len(s) > bytesMax || strings.IndexFunc(s, unicode.IsControl) >= 0 {
		return fmt.Errorf("a text has control characters or more than %d bytes", bytesMax)
	}
	return nil
}

// checkTime refuses years that JSON cannot write, also in another time zone. The zero time is fine.
func checkTime(t time.Time) error {
	if year := t.UTC().Year(); !t.IsZero() && (year < yearMin || year > yearMax) {
		return fmt.Errorf("a time is in the year %d", year)
	}
	_, err := t.MarshalJSON() // package time reads zones of 24 hours, and does not write them
	return err
}
