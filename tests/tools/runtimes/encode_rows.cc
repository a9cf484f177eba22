// Encodes the columns of standard input by encoder.h: run with the folder and the number of rows.
//
// A line is "<feature>\t<type>\t<row>;<row>...", with values between commas and texts in hex
// digits behind an "x". An output line is "<input>\t<type>\t<shape>\t<values>".

#include "encoder.h"

#include <cstdio>
#include <iostream>

namespace {

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text + separator);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::string FromHex(const std::string& digits) {
  std::string text;
  for (std::size_t i = 1; i < digits.size(); i += 2) {
    text.push_back(static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return text;
}

void Print(const mtl::Tensor& tensor) {
  std::cout << tensor.type << "\t";
  for (const auto size : tensor.shape) std::cout << size << ",";
  std::cout << "\t";
  for (const float number : tensor.numbers) std::printf("%a,", number);
  std::fflush(stdout);
  for (const auto integer : tensor.integers) std::cout << integer << ",";
  for (const auto& text : tensor.texts) {
    std::cout << "x" << std::flush;
    for (const char c : text) std::printf("%02x", static_cast<unsigned char>(c));
    std::fflush(stdout);
    std::cout << ",";
  }
  std::cout << std::endl;
}

}  // namespace

int main(int, char** arguments) {
  mtl::Columns columns;
  for (std::string line; std::getline(std::cin, line);) {
    const std::vector<std::string> parts = Split(line, '\t');
    mtl::Column& column = columns[parts[0]];
    const bool is_list = parts[1].find("list") != std::string::npos;
    for (const std::string& row : Split(parts[2], ';')) {
      std::vector<std::string> values;
      if (!row.empty()) values = Split(row, ',');
      if (is_list) {
        if (parts[1] == "list string") column.text_lists.emplace_back();
        if (parts[1] == "list int64") column.integer_lists.emplace_back();
      }
      for (const std::string& value : values) {
        if (parts[1] == "string") column.texts.push_back(FromHex(value));
        if (parts[1] == "int64") column.integers.push_back(std::stoll(value));
        if (parts[1] == "float32") column.numbers.push_back(std::stof(value));
        if (parts[1] == "list string") column.text_lists.back().push_back(FromHex(value));
        if (parts[1] == "list int64") column.integer_lists.back().push_back(std::stoll(value));
      }
    }
  }
  try {
    const mtl::Encoder encoder(arguments[1]);
    for (const auto& named : encoder.encode(columns, std::stoul(arguments[2]))) {
      std::cout << named.first << "\t";
      Print(named.second);
    }
  } catch (const std::invalid_argument& error) {
    std::cout << "error: " << error.what() << std::endl;
    return 2;
  }
  return 0;
}
