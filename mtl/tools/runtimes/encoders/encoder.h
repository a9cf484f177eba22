// Encodes raw features as the inputs of a model that takes ids. The header has no dependencies.
//
//   mtl::Encoder encoder("models/adult/1795231775/portable/ids");
//   mtl::Columns columns;
//   columns["age"].numbers = {39.0f, 50.0f};
//   columns["job"].texts = {"cook", "smith"};
//   columns["tags"].text_lists = {{"a", "b"}, {}};
//   mtl::Tensors inputs = encoder.encode(columns, 2);
//   inputs["job/categorical_job"].integers;  // of the shape inputs["job/categorical_job"].shape
//
// encoder.py, in the same folder, documents the files that both programs read. Texts are bytes in
// UTF-8. The header needs C++11. Wrong values throw std::invalid_argument.

#ifndef MTL_ENCODER_H_
#define MTL_ENCODER_H_

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace mtl {

// Returns the FarmHash Fingerprint64 of bytes, which TensorFlow's hash buckets use.
namespace farmhash {

const std::uint64_t k0 = 0xC3A5C85C97CB3127ULL;
const std::uint64_t k1 = 0xB492B66FBE98F273ULL;
const std::uint64_t k2 = 0x9AE16A3B2F90404FULL;
typedef std::pair<std::uint64_t, std::uint64_t> Pair;

inline std::uint64_t fetch(const char* bytes, int size = 8) {
  std::uint64_t value = 0;
  for (int i = size - 1; i >= 0; --i) {
    value = (value << 8) | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

inline std::uint64_t rotate(std::uint64_t value, int shift) {
  return (value >> shift) | (value << (64 - shift));
}

inline std::uint64_t mix(std::uint64_t value) { return value ^ (value >> 47); }

inline std::uint64_t join(std::uint64_t u, std::uint64_t v, std::uint64_t factor) {
  const std::uint64_t one = mix((u ^ v) * factor);
  return mix((v ^ one) * factor) * factor;
}

inline std::uint64_t hash_to_16(const char* s, std::uint64_t size) {
  const std::uint64_t factor = k2 + size * 2;
  if (size >= 8) {
    const std::uint64_t a = fetch(s) + k2, b = fetch(s + size - 8);
    return join(rotate(b, 37) * factor + a, (rotate(a, 25) + b) * factor, factor);
  }
  if (size >= 4) return join(size + (fetch(s, 4) << 3), fetch(s + size - 4, 4), factor);
  if (size > 0) {
    const std::uint64_t low = fetch(s, 1) + (fetch(s + (size >> 1), 1) << 8);
    const std::uint64_t high = size + (fetch(s + size - 1, 1) << 2);
    return mix(low * k2 ^ high * k0) * k2;
  }
  return k2;
}

inline std::uint64_t hash_to_32(const char* s, std::uint64_t size) {
  const std::uint64_t factor = k2 + size * 2, a = fetch(s) * k1, b = fetch(s + 8);
  const std::uint64_t c = fetch(s + size - 8) * factor, d = fetch(s + size - 16) * k2;
  return join(rotate(a + b, 43) + rotate(c, 30) + d, a + rotate(b + k2, 18) + c, factor);
}

inline std::uint64_t hash_to_64(const char* s, std::uint64_t size) {
  const std::uint64_t factor = k2 + size * 2, a = fetch(s) * k2, b = fetch(s + 8);
  const std::uint64_t c = fetch(s + size - 8) * factor, d = fetch(s + size - 16) * k2;
  const std::uint64_t y = rotate(a + b, 43) + rotate(c, 30) + d;
  const std::uint64_t z = join(y, a + rotate(b + k2, 18) + c, factor);
  const std::uint64_t e = fetch(s + 16) * factor, f = fetch(s + 24);
  const std::uint64_t g = (y + fetch(s + size - 32)) * factor;
  const std::uint64_t h = (z + fetch(s + size - 24)) * factor;
  return join(rotate(e + f, 43) + rotate(g, 30) + h, e + rotate(f + a, 18) + g, factor);
}

inline Pair hash_32_bytes(const char* s, std::uint64_t a, std::uint64_t b) {
  const std::uint64_t w = fetch(s), x = fetch(s + 8), y = fetch(s + 16), z = fetch(s + 24);
  a += w;
  b = rotate(b + a + z, 21);
  const std::uint64_t c = a;
  a += x + y;
  return Pair(a + z, b + rotate(a, 44) + c);
}

inline std::uint64_t hash_long(const char* s, std::uint64_t size) {
  std::uint64_t x = 81, y = 81 * k1 + 113, z = mix(y * k2 + 113) * k2, factor = k1;
  Pair v(0, 0), w(0, 0);
  x = x * k2 + fetch(s);
  const std::uint64_t whole = (size - 1) / 64 * 64;
  // The last 64 bytes, which may overlap with the block before, use another factor.
  for (std::uint64_t block = 0; block <= whole; block += 64) {
    const bool is_last = block == whole;
    const char* place = s + (is_last ? size - 64 : block);
    const std::uint64_t times = is_last ? 9 : 1;
    if (is_last) {
      factor = k1 + ((z & 0xFF) << 1);
      w.first += (size - 1) & 63;
      v.first += w.first;
      w.first += v.first;
    }
    x = rotate(x + y + v.first + fetch(place + 8), 37) * factor;
    y = rotate(y + v.second + fetch(place + 48), 42) * factor;
    x ^= w.second * times;
    y += v.first * times + fetch(place + 40);
    z = rotate(z + w.first, 33) * factor;
    v = hash_32_bytes(place, v.second * factor, x + w.first);
    w = hash_32_bytes(place + 32, z + w.second, y + fetch(place + 16));
    std::swap(x, z);
  }
  const std::uint64_t first = join(v.first, w.first, factor) + mix(y) * k0 + z;
  return join(first, join(v.second, w.second, factor) + x, factor);
}

inline std::uint64_t fingerprint(const std::string& text) {
  const std::uint64_t size = text.size();
  if (size <= 16) return hash_to_16(text.data(), size);
  if (size <= 32) return hash_to_32(text.data(), size);
  return size <= 64 ? hash_to_64(text.data(), size) : hash_long(text.data(), size);
}

}  // namespace farmhash

// The values of a feature for B rows. Fill the vector for the type of the feature; values of type
// int64, uint8 and bool are integers. An array with a fixed shape is stored row by row. If a row
// lacks a value, fill in the default of the feature from encoder.txt.
struct Column {
  std::vector<float> numbers;
  std::vector<std::int64_t> integers;
  std::vector<std::string> texts;
  std::vector<std::vector<float>> number_lists;
  std::vector<std::vector<std::int64_t>> integer_lists;
  std::vector<std::vector<std::string>> text_lists;
};
typedef std::map<std::string, Column> Columns;

// An input of the model, [B, ...], which is stored row by row. A list is padded to [B, L], L > 0.
// `type` is "float32", "int64", "uint8", "bool" or "string", and decides which vector is filled.
struct Tensor {
  std::string type;
  std::vector<std::int64_t> shape;
  std::vector<float> numbers;
  std::vector<std::int64_t> integers;
  std::vector<std::string> texts;
};
typedef std::map<std::string, Tensor> Tensors;

class Encoder {
 public:
  // Reads encoder.txt and the vocabularies of a folder.
  explicit Encoder(const std::string& directory) {
    const std::vector<std::string> lines = read_lines(directory + "/encoder.txt");
    require(!lines.empty() && lines[0] == "mtl-encoder\t1", "encoder.txt is of another version");
    for (std::size_t i = 1; i < lines.size(); ++i) {
      const std::vector<std::string> parts = split(lines[i], '\t');
      const bool fits = parts.size() > 2;
      require(fits, "encoder.txt holds an unknown line: " + lines[i]);
      if (parts[0] == "feature") {
        require(parts.size() > 3, "encoder.txt holds an unknown line: " + lines[i]);
        features_[unescape(parts[1])] = parse_feature(parts);
      } else if (parts[0] == "counts") {
        counts_[unescape(parts[2])] = unescape(parts[1]);
      } else {
        require(parts[0] == "input" && parts.size() > 3, "unknown line: " + lines[i]);
        inputs_[unescape(parts[1])] = parse_input(directory, parts);
      }
    }
  }

  // Returns {input: tensor} for `count` rows. If a column is absent or empty, all rows get the
  // default of its feature, or an empty list.
  Tensors encode(const Columns& columns, std::size_t count) const {
    Columns values;
    for (const auto& named : columns) {
      require(features_.count(named.first) > 0, "unknown feature '" + named.first + "'");
    }
    for (const auto& named : features_) {
      const auto found = columns.find(named.first);
      const Column empty = Column();
      const Column& given = found == columns.end() ? empty : found->second;
      values[named.first] = read(named.first, named.second, given, count);
    }
    drop_empty_texts(&values);
    check_weights(values);
    Tensors tensors;
    for (const auto& named : inputs_) {
      const std::string& feature = named.second.feature;
      tensors[named.first] =
          encode_input(named.second, features_.at(feature), values.at(feature), count);
    }
    return tensors;
  }

 private:
  struct Feature {
    std::string type;
    std::vector<std::int64_t> shape;
    bool is_list;
    bool has_default;
    std::string fallback;
    std::size_t size() const {
      std::size_t total = 1;
      for (const std::int64_t length : shape) total *= static_cast<std::size_t>(length);
      return total;
    }
  };

  struct Input {
    std::string feature, kind;
    std::uint64_t size, unknown;
    std::unordered_map<std::string, std::int64_t> places;
    std::int64_t encode(const std::string& token) const {
      if (kind == "hash") return static_cast<std::int64_t>(farmhash::fingerprint(token) % size);
      const auto place = places.find(token);
      if (place != places.end()) return place->second;
      const std::uint64_t more = unknown > 1 ? farmhash::fingerprint(token) % unknown : 0;
      return static_cast<std::int64_t>(size + more);
    }
  };

  static void require(bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument(message);
  }

  static std::vector<std::string> read_lines(const std::string& path) {
    std::ifstream file(path.c_str(), std::ios::binary);
    require(file.good(), "cannot read " + path);
    std::stringstream content;
    content << file.rdbuf();
    std::vector<std::string> lines = split(content.str(), '\n');
    lines.pop_back();
    return lines;
  }

  static std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts(1);
    for (const char c : text) {
      if (c == separator) {
        parts.push_back(std::string());
      } else {
        parts.back().push_back(c);
      }
    }
    return parts;
  }

  static std::string unescape(const std::string& text) {
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        plain.push_back(text[i]);
        continue;
      }
      const char c = text[++i];
      plain.push_back(c == 't' ? '\t' : c == 'n' ? '\n' : c == 'r' ? '\r' : c);
    }
    return plain;
  }

  static Feature parse_feature(const std::vector<std::string>& parts) {
    Feature feature;
    feature.type = parts[2];
    feature.is_list = parts[3] == "list";
    feature.has_default = parts.size() > 4;
    if (feature.has_default) feature.fallback = unescape(parts[4]);
    if (!feature.is_list && !parts[3].empty()) {
      for (const std::string& length : split(parts[3], ',')) {
        feature.shape.push_back(std::atoll(length.c_str()));
      }
    }
    return feature;
  }

  static Input parse_input(const std::string& directory, const std::vector<std::string>& parts) {
    Input input;
    input.feature = unescape(parts[2]);
    input.kind = parts[3];
    input.size = input.unknown = 0;
    if (input.kind == "hash") input.size = std::strtoull(parts.at(4).c_str(), nullptr, 10);
    if (input.kind == "vocabulary") {
      input.size = std::strtoull(parts.at(5).c_str(), nullptr, 10);
      input.unknown = std::strtoull(parts.at(6).c_str(), nullptr, 10);
      for (const std::string& line : read_lines(directory + "/" + parts[4])) {
        const std::int64_t place = static_cast<std::int64_t>(input.places.size());
        input.places.insert(std::make_pair(unescape(line), place));
      }
      require(input.places.size() == input.size, parts[4] + " holds another number of categories");
    }
    return input;
  }

  // Returns a column after filling in defaults, and after checking sizes and ranges.
  static Column read(const std::string& name, const Feature& feature, const Column& given,
                     std::size_t count) {
    const bool is_text = feature.type == "string", is_number = feature.type == "float32";
    const bool has_lists = !given.number_lists.empty() || !given.integer_lists.empty() ||
                           !given.text_lists.empty();
    const bool has_values =
        !given.numbers.empty() || !given.integers.empty() || !given.texts.empty();
    require(feature.is_list ? !has_values : !has_lists,
            "feature '" + name + (feature.is_list ? "' must hold lists" : "' must hold no lists"));
    const bool fits = (is_number || given.numbers.empty()) && (is_text || given.texts.empty()) &&
                      ((!is_number && !is_text) || given.integers.empty());
    require(fits, "feature '" + name + "' must be " + feature.type);
    Column column;
    if (feature.is_list) {
      column.number_lists = lists(name, given.number_lists, is_number, count);
      column.integer_lists = lists(name, given.integer_lists, !is_text && !is_number, count);
      column.text_lists = lists(name, given.text_lists, is_text, count);
    } else {
      const std::size_t size = count * feature.size();
      const std::string& text = feature.fallback;
      const float number = std::strtof(text.c_str(), nullptr);
      const std::int64_t integer = std::strtoll(text.c_str(), nullptr, 10);
      column.numbers = filled(name, feature, given.numbers, number, is_number, size);
      column.integers =
          filled(name, feature, given.integers, integer, !is_text && !is_number, size);
      column.texts = filled(name, feature, given.texts, text, is_text, size);
    }
    require_range(name, feature, column.integers);
    for (const auto& list : column.integer_lists) require_range(name, feature, list);
    return column;
  }

  template <typename Value>
  static std::vector<Value> filled(const std::string& name, const Feature& feature,
                                   const std::vector<Value>& given, const Value& fallback,
                                   bool is_type, std::size_t size) {
    if (!is_type || (given.empty() && size == 0)) return std::vector<Value>();
    if (given.empty()) {
      require(feature.has_default,
              "feature '" + name + "' must be present, as it has no default");
      return std::vector<Value>(size, fallback);
    }
    require(given.size() == size, "feature '" + name + "' has another number of values");
    return given;
  }

  template <typename Value>
  static std::vector<std::vector<Value>> lists(const std::string& name,
                                               const std::vector<std::vector<Value>>& given,
                                               bool is_type, std::size_t count) {
    require(is_type || given.empty(), "feature '" + name + "' has lists of another type");
    require(given.empty() || given.size() == count,
            "feature '" + name + "' has another number of lists");
    return given.empty() && is_type ? std::vector<std::vector<Value>>(count) : given;
  }

  static void require_range(const std::string& name, const Feature& feature,
                            const std::vector<std::int64_t>& values) {
    const std::int64_t most = feature.type == "uint8" ? 255 : 1;
    if (feature.type != "uint8" && feature.type != "bool") return;
    for (const std::int64_t value : values) {
      require(value >= 0 && value <= most, "feature '" + name + "' must be " + feature.type);
    }
  }

  // Drops empty texts from lists, as training does.
  void drop_empty_texts(Columns* values) const {
    for (const auto& named : features_) {
      if (!named.second.is_list || named.second.type != "string") continue;
      const auto counts = counts_.find(named.first);
      std::vector<std::vector<std::string>>& rows = (*values)[named.first].text_lists;
      for (std::size_t row = 0; row < rows.size(); ++row) {
        if (counts != counts_.end()) {
          recount(named.first, rows[row], &(*values)[counts->second].integer_lists[row]);
        }
        std::vector<std::string> texts;
        for (const std::string& text : rows[row]) {
          if (!text.empty()) texts.push_back(text);
        }
        rows[row] = texts;
      }
    }
  }

  // Fails unless lists have a weight for each value, because other runtimes do not check this.
  void check_weights(const Columns& values) const {
    for (const auto& named : features_) {
      const auto weights = values.find(named.first + "/weights");
      const bool has_ids = named.second.is_list && named.second.type != "float32";
      if (weights == values.end() || !has_ids || counts_.count(named.first) > 0) continue;
      const Column& column = values.at(named.first);
      const auto& rows = weights->second.number_lists;
      for (std::size_t row = 0; row < rows.size(); ++row) {
        const std::size_t size = column.text_lists.empty() ? column.integer_lists[row].size()
                                                           : column.text_lists[row].size();
        require(size == rows[row].size(),
                "feature '" + named.first + "' must have a weight for each value");
      }
    }
  }

  static void recount(const std::string& name, const std::vector<std::string>& texts,
                      std::vector<std::int64_t>* counts) {
    std::size_t place = 0;
    const std::string message = "the counts of feature '" + name + "' do not fit its values";
    for (std::int64_t& count : *counts) {
      require(count >= 0 && static_cast<std::uint64_t>(count) <= texts.size() - place, message);
      std::int64_t left = 0;
      for (std::int64_t i = 0; i < count; ++i) left += !texts[place++].empty();
      count = left;
    }
    require(place == texts.size(), message);
  }

  static Tensor encode_input(const Input& input, const Feature& feature, const Column& column,
                             std::size_t count) {
    Tensor tensor;
    tensor.type = input.kind == "values" ? feature.type : "int64";
    tensor.shape.push_back(static_cast<std::int64_t>(count));
    if (input.kind == "length") {
      for (const auto& row : column.number_lists) tensor.integers.push_back(size_of(row));
      for (const auto& row : column.integer_lists) tensor.integers.push_back(size_of(row));
      for (const auto& row : column.text_lists) tensor.integers.push_back(size_of(row));
      return tensor;
    }
    if (!feature.is_list) {
      tensor.shape.insert(tensor.shape.end(), feature.shape.begin(), feature.shape.end());
      if (input.kind == "values") {
        tensor.numbers = column.numbers;
        tensor.integers = column.integers;
        tensor.texts = column.texts;
      } else {
        tensor.integers = encode_values(input, column.integers, column.texts);
      }
      return tensor;
    }
    if (input.kind == "values") {
      pad(column.number_lists, &tensor.numbers, &tensor.shape);
      pad(column.integer_lists, &tensor.integers, &tensor.shape);
      pad(column.text_lists, &tensor.texts, &tensor.shape);
      if (count == 0) tensor.shape.push_back(1);
      return tensor;
    }
    std::vector<std::vector<std::int64_t>> ids;
    for (const auto& row : column.integer_lists) {
      ids.push_back(encode_values(input, row, std::vector<std::string>()));
    }
    for (const auto& row : column.text_lists) {
      ids.push_back(encode_values(input, std::vector<std::int64_t>(), row));
    }
    pad(ids, &tensor.integers, &tensor.shape);
    if (count == 0) tensor.shape.push_back(1);
    return tensor;
  }

  static std::vector<std::int64_t> encode_values(const Input& input,
                                                 const std::vector<std::int64_t>& integers,
                                                 const std::vector<std::string>& texts) {
    std::vector<std::int64_t> ids;
    for (const std::int64_t value : integers) ids.push_back(input.encode(std::to_string(value)));
    for (const std::string& text : texts) ids.push_back(input.encode(text));
    return ids;
  }

  template <typename Value>
  static std::int64_t size_of(const std::vector<Value>& row) {
    return static_cast<std::int64_t>(row.size());
  }

  template <typename Value>
  static void pad(const std::vector<std::vector<Value>>& rows, std::vector<Value>* padded,
                  std::vector<std::int64_t>* shape) {
    if (rows.empty()) return;
    std::size_t width = 1;
    for (const auto& row : rows) width = row.size() > width ? row.size() : width;
    for (const auto& row : rows) {
      padded->insert(padded->end(), row.begin(), row.end());
      padded->insert(padded->end(), width - row.size(), Value());
    }
    shape->push_back(static_cast<std::int64_t>(width));
  }

  std::map<std::string, Feature> features_;
  std::map<std::string, Input> inputs_;
  std::map<std::string, std::string> counts_;
};

}  // namespace mtl

#endif  // MTL_ENCODER_H_
